/* A libnvidia-ml.so.1 without a card: what it says stands in the text file that FAKE_NVML_STATE names.
 *
 * The tests build it (build.py) and have the real pynvml load it in a process of its own. The file is read again
 * whenever it has changed, so a test can lose a card in the middle of a run. Its lines:
 *
 *   driver 615.10            version of the driver
 *   nvml 13.615.10           version of this library
 *   cuda 13010               version of CUDA, as NVML numbers it
 *   fail nvmlDeviceGetUUID 3 this call answers with this error from now on (for every card)
 *   device                   a card; the lines up to the next `device` are about it
 *   uuid GPU-…               its uuid
 *   name NVIDIA A100         its model, blanks allowed
 *   memory 81920 600 1024    MiB: all of it, the driver's own part, used
 *   utilisation 37           percent
 *   power 250000             milliwatts
 *   temperature 61           degrees
 *   mig 0                    MIG mode
 *   process 4711 2048 c      pid, MiB (-1: not known), c for compute or g for graphics
 *   lost 15                  every call about it answers with this error
 *
 * A figure that has no line is NOT_SUPPORTED, as on a card that lacks it. So is every call that pynvml knows and that
 * is not below: build.py adds those.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, VERSION_MISMATCH = 25 };
enum { MAX_DEVICES = 64, MAX_PROCESSES = 256, MAX_FAILURES = 64, TEXT = 96 };

typedef unsigned long long u64;

typedef struct { unsigned pid; long long mib; char kind; } Process;
typedef struct {
    char uuid[TEXT], name[TEXT];
    long long total, reserved, used; /* MiB, -1: no line */
    int utilisation, power, temperature, mig, lost; /* -1: no line; lost: 0 is not lost */
    int processes;
    Process process[MAX_PROCESSES];
} Device;

static struct {
    char driver[TEXT], nvml[TEXT];
    int cuda, devices, failures;
    struct { char call[TEXT]; int error; } failure[MAX_FAILURES];
    Device device[MAX_DEVICES];
} state;
static struct stat read_when;
static int started, readable;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* What pynvml allocates for us to fill. */
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct { unsigned version, sensor; int celsius; } Temperature;
typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } ProcessInfo;

static void device_line(Device *device, const char *key, const char *rest)
{
    Process process = {0};
    if (!strcmp(key, "uuid")) snprintf(device->uuid, TEXT, "%s", rest);
    else if (!strcmp(key, "name")) snprintf(device->name, TEXT, "%s", rest);
    else if (!strcmp(key, "memory")) sscanf(rest, "%lld %lld %lld", &device->total, &device->reserved, &device->used);
    else if (!strcmp(key, "utilisation")) device->utilisation = atoi(rest);
    else if (!strcmp(key, "power")) device->power = atoi(rest);
    else if (!strcmp(key, "temperature")) device->temperature = atoi(rest);
    else if (!strcmp(key, "mig")) device->mig = atoi(rest);
    else if (!strcmp(key, "lost")) device->lost = atoi(rest);
    else if (!strcmp(key, "process") && device->processes < MAX_PROCESSES
             && sscanf(rest, "%u %lld %c", &process.pid, &process.mib, &process.kind) == 3)
        device->process[device->processes++] = process;
    else { fprintf(stderr, "fake NVML: cannot read '%s %s'\n", key, rest); abort(); }
}

static void state_line(char *line)
{
    char key[TEXT] = "", *rest = line;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "%95s", key) != 1) return;
    rest = line + strlen(key);
    rest += strspn(rest, " ");
    if (!strcmp(key, "device") && state.devices < MAX_DEVICES) {
        Device *device = &state.device[state.devices++];
        device->total = device->utilisation = device->power = device->temperature = device->mig = -1;
    } else if (state.devices) device_line(&state.device[state.devices - 1], key, rest);
    else if (!strcmp(key, "driver")) snprintf(state.driver, TEXT, "%s", rest);
    else if (!strcmp(key, "nvml")) snprintf(state.nvml, TEXT, "%s", rest);
    else if (!strcmp(key, "cuda")) state.cuda = atoi(rest);
    else if (!strcmp(key, "fail") && state.failures < MAX_FAILURES) {
        sscanf(rest, "%95s %d", state.failure[state.failures].call, &state.failure[state.failures].error);
        state.failures++;
    } else { fprintf(stderr, "fake NVML: cannot read '%s %s'\n", key, rest); abort(); }
}

/* Read the state file if it is another than at the last call. */
static void refresh(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    struct stat now = {0};
    char line[512];
    FILE *file;
    if (!path || stat(path, &now)) { readable = 0; return; }
    if (readable && now.st_mtim.tv_sec == read_when.st_mtim.tv_sec && now.st_size == read_when.st_size
        && now.st_mtim.tv_nsec == read_when.st_mtim.tv_nsec && now.st_ino == read_when.st_ino) return;
    file = fopen(path, "r");
    if (!file) { readable = 0; return; }
    memset(&state, 0, sizeof state);
    while (fgets(line, sizeof line, file)) state_line(line);
    fclose(file);
    read_when = now;
    readable = 1;
}

/* What every call does first: 0, or the error that it has to answer with. */
static int enter(const char *call)
{
    refresh();
    if (!readable) return DRIVER_NOT_LOADED;
    for (int i = 0; i < state.failures; i++)
        if (!strcmp(state.failure[i].call, call)) return state.failure[i].error;
    return started > 0 || !strncmp(call, "nvmlInit", 8) ? SUCCESS : UNINITIALIZED;
}

/* A handle is the card's place in the file plus one. */
static int enter_device(const char *call, void *handle, Device **device)
{
    size_t number = (size_t)handle;
    int error = enter(call);
    if (error) return error;
    if (number < 1 || number > (size_t)state.devices) return INVALID_ARGUMENT;
    *device = &state.device[number - 1];
    return (*device)->lost;
}

#define BEGIN int error; pthread_mutex_lock(&lock);
#define END pthread_mutex_unlock(&lock); return error;

static int text(char *to, unsigned length, const char *from)
{
    if (strlen(from) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

static int number(int value, unsigned *to)
{
    if (value < 0) return NOT_SUPPORTED;
    *to = (unsigned)value;
    return SUCCESS;
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    BEGIN
    error = enter(__func__);
    if (!error) started++;
    END
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void)
{
    BEGIN
    error = enter(__func__);
    if (!error) started--;
    END
}

const char *nvmlErrorString(int error) { return error == 18 ? "Driver/library version mismatch" : "an error"; }

int nvmlSystemGetDriverVersion(char *to, unsigned length)
{
    BEGIN
    error = enter(__func__);
    if (!error) error = *state.driver ? text(to, length, state.driver) : NOT_SUPPORTED;
    END
}

int nvmlSystemGetNVMLVersion(char *to, unsigned length)
{
    BEGIN
    error = enter(__func__);
    if (!error) error = *state.nvml ? text(to, length, state.nvml) : NOT_SUPPORTED;
    END
}

int nvmlSystemGetCudaDriverVersion_v2(int *to)
{
    BEGIN
    error = enter(__func__);
    if (!error) *to = state.cuda;
    END
}

int nvmlDeviceGetCount_v2(unsigned *to)
{
    BEGIN
    error = enter(__func__);
    if (!error) *to = (unsigned)state.devices;
    END
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **to)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, (void *)(size_t)(index + 1), &device);
    if (!error) *to = (void *)(size_t)(index + 1);
    END
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **to)
{
    BEGIN
    error = enter(__func__);
    if (!error) {
        error = NOT_FOUND;
        for (int i = 0; i < state.devices; i++)
            if (!strcmp(state.device[i].uuid, uuid)) { *to = (void *)(size_t)(i + 1); error = state.device[i].lost; }
    }
    END
}

int nvmlDeviceGetUUID(void *handle, char *to, unsigned length)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error) error = text(to, length, device->uuid);
    END
}

int nvmlDeviceGetName(void *handle, char *to, unsigned length)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error) error = *device->name ? text(to, length, device->name) : NOT_SUPPORTED;
    END
}

/* The older call counts the driver's own part as used. */
int nvmlDeviceGetMemoryInfo(void *handle, Memory *to)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error && device->total < 0) error = NOT_SUPPORTED;
    if (!error) {
        to->total = (u64)device->total << 20;
        to->used = (u64)(device->used + device->reserved) << 20;
        to->free = to->total - to->used;
    }
    END
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *to)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error && device->total < 0) error = NOT_SUPPORTED;
    if (!error && to->version != (sizeof(Memory2) | 2u << 24)) error = VERSION_MISMATCH;
    if (!error) {
        to->total = (u64)device->total << 20;
        to->reserved = (u64)device->reserved << 20;
        to->used = (u64)device->used << 20;
        to->free = to->total - to->reserved - to->used;
    }
    END
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilisation *to)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error) error = number(device->utilisation, &to->gpu);
    if (!error) to->memory = 0;
    END
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *to)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error) error = number(device->power, to);
    END
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *to)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error) error = sensor ? INVALID_ARGUMENT : number(device->temperature, to);
    END
}

int nvmlDeviceGetTemperatureV(void *handle, Temperature *to)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error && to->version != (sizeof(Temperature) | 1u << 24)) error = VERSION_MISMATCH;
    if (!error) error = to->sensor ? INVALID_ARGUMENT : number(device->temperature, (unsigned *)&to->celsius);
    END
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    Device *device;
    BEGIN
    error = enter_device(__func__, handle, &device);
    if (!error) error = number(device->mig, current);
    if (!error) *pending = *current;
    END
}

static int processes(const char *call, void *handle, char kind, unsigned *count, ProcessInfo *to)
{
    Device *device;
    unsigned room = *count, found = 0;
    BEGIN
    error = enter_device(call, handle, &device);
    if (!error) {
        for (int i = 0; i < device->processes; i++) {
            Process *process = &device->process[i];
            if (process->kind != kind) continue;
            if (to && found < room)
                to[found] = (ProcessInfo){process->pid, process->mib < 0 ? ~0ull : (u64)process->mib << 20, ~0u, ~0u};
            found++;
        }
        *count = found;
        if (found > room || (found && !to)) error = INSUFFICIENT_SIZE;
    }
    END
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *to)
{
    return processes(__func__, handle, 'c', count, to);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *to)
{
    return processes(__func__, handle, 'g', count, to);
}
