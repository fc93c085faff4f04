/* Reads the state file. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

State state;
int started;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat read_when;
static int readable;

static void unreadable(const char *key, const char *rest)
{
    fprintf(stderr, "fake NVML: cannot read '%s %s'\n", key, rest);
    abort();
}

static int list_line(Device *it, const char *key, const char *rest)
{
    if (!strcmp(key, "process") && it->processes < MAX_PROCESSES) {
        Process one = {.gpu_instance = -1, .compute_instance = -1};
        if (sscanf(rest, "%u %lld %c %d %d", &one.pid, &one.bytes, &one.kind, &one.gpu_instance,
                   &one.compute_instance) < 3) return 0;
        if (one.bytes > 0) one.bytes <<= 20;
        it->process[it->processes++] = one;
        return 1;
    }
    if (!strcmp(key, "sampled") && it->samples < MAX_SAMPLES) {
        Sampled one = {0};
        if (sscanf(rest, "%u %u %llu", &one.pid, &one.percent, &one.when) != 3) return 0;
        it->sampled[it->samples++] = one;
        return 1;
    }
    if (!strcmp(key, "instance") && it->instances < MAX_INSTANCES) {
        Instance one = {0};
        if (sscanf(rest, "%95s %d %d %lld %d %95s", one.uuid, &one.gpu_instance, &one.compute_instance, &one.mib,
                   &one.slices, one.profile) != 6) return 0;
        it->instance[it->instances++] = one;
        return 1;
    }
    if (!strcmp(key, "xid") && it->xids < MAX_XIDS) {
        Xid one = {.gpu_instance = -1, .compute_instance = -1};
        if (sscanf(rest, "%llu %u %d %d", &one.number, &one.xid, &one.gpu_instance, &one.compute_instance) < 2) return 0;
        it->xid[it->xids++] = one;
        return 1;
    }
    return 0;
}

static int place_line(Device *it, const char *key, const char *rest)
{
    int one = -1, two = -1, kind = 0;
    char remote[TEXT] = "";
    if (!strcmp(key, "pci")) return snprintf(it->pci, TEXT, "%s", rest) > 0;
    if (!strcmp(key, "numa")) return sscanf(rest, "%d", &it->numa) == 1;
    if (!strcmp(key, "nvlink")) {
        if (sscanf(rest, "%d %d %95s %d", &one, &two, remote, &kind) < 2 || one < 0 || one >= MAX_LINKS) return 0;
        it->link[one].active = two;
        it->link[one].kind = kind;
        strcpy(it->link[one].remote, remote);
        return 1;
    }
    if (!strcmp(key, "topology")) {
        if (sscanf(rest, "%d %d", &one, &two) != 2 || one < 0 || one >= MAX_DEVICES) return 0;
        it->topology[one] = two;
        return 1;
    }
    return 0;
}

static int health_line(Device *it, const char *key, const char *rest)
{
    if (!strcmp(key, "ecc")) return sscanf(rest, "%d %d", &it->ecc, &it->ecc_pending) == 2;
    if (!strcmp(key, "ecc_errors"))
        return sscanf(rest, "%lld %lld %lld %lld", &it->ecc_error[0], &it->ecc_error[1], &it->ecc_error[2],
                      &it->ecc_error[3]) == 4;
    if (!strcmp(key, "remapped"))
        return sscanf(rest, "%d %d %d %d", &it->remapped[0], &it->remapped[1], &it->remapped[2], &it->remapped[3]) == 4;
    if (!strcmp(key, "retired"))
        return sscanf(rest, "%d %d %d", &it->retired[0], &it->retired[1], &it->retired[2]) == 3;
    if (!strcmp(key, "recovery")) return sscanf(rest, "%d", &it->recovery) == 1;
    if (!strcmp(key, "throttle")) return sscanf(rest, "%lli", &it->throttle) == 1;
    if (!strcmp(key, "lost")) return sscanf(rest, "%d", &it->lost) == 1;
    return 0;
}

static int figure_line(Device *it, const char *key, const char *rest)
{
    if (!strcmp(key, "uuid")) return snprintf(it->uuid, TEXT, "%s", rest) > 0;
    if (!strcmp(key, "name")) return snprintf(it->name, TEXT, "%s", rest) > 0;
    if (!strcmp(key, "memory")) return sscanf(rest, "%lld %lld %lld", &it->total, &it->reserved, &it->used) == 3;
    if (!strcmp(key, "utilisation")) return sscanf(rest, "%d", &it->utilisation) == 1;
    if (!strcmp(key, "temperature")) return sscanf(rest, "%d", &it->temperature) == 1;
    if (!strcmp(key, "power")) return sscanf(rest, "%d %d", &it->power, &it->power_limit) >= 1;
    if (!strcmp(key, "energy")) return sscanf(rest, "%lld", &it->energy) == 1;
    if (!strcmp(key, "clocks"))
        return sscanf(rest, "%d %d %d %d", &it->sm_clock, &it->memory_clock, &it->most_sm_clock,
                      &it->most_memory_clock) >= 2;
    if (!strcmp(key, "capability")) return sscanf(rest, "%d %d", &it->major, &it->minor) == 2;
    if (!strcmp(key, "persistence")) return sscanf(rest, "%d", &it->persistence) == 1;
    if (!strcmp(key, "compute_mode")) return sscanf(rest, "%d", &it->compute_mode) == 1;
    if (!strcmp(key, "mig")) {
        int read = sscanf(rest, "%d %d", &it->mig, &it->mig_pending);
        if (read == 1) it->mig_pending = it->mig;
        return read >= 1;
    }
    if (!strcmp(key, "instances")) return sscanf(rest, "%d", &it->most_instances) == 1;
    return 0;
}

static void begin_device(void)
{
    Device *it = &state.device[state.devices++];
    memset(it, 0xff, offsetof(Device, lost)); /* every figure -1 */
    it->uuid[0] = it->name[0] = it->pci[0] = 0;
    it->lost = 0;
    for (int i = 0; i < MAX_LINKS; i++) it->link[i].active = -1;
    for (int i = 0; i < MAX_DEVICES; i++) it->topology[i] = -1;
}

static int machine_line(const char *key, const char *rest)
{
    if (!strcmp(key, "driver")) return snprintf(state.driver, TEXT, "%s", rest) > 0;
    if (!strcmp(key, "nvml")) return snprintf(state.nvml, TEXT, "%s", rest) > 0;
    if (!strcmp(key, "cuda")) return sscanf(rest, "%d", &state.cuda) == 1;
    if (!strcmp(key, "fail") && state.failures < MAX_FAILURES) {
        int number = state.failures++;
        return sscanf(rest, "%95s %d", state.failure[number].call, &state.failure[number].error) == 2;
    }
    return 0;
}

static void state_line(char *line)
{
    char key[TEXT] = "", *rest = line;
    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "%95s", key) != 1) return;
    rest = line + strlen(key);
    rest += strspn(rest, " ");
    if (!strcmp(key, "device") && state.devices < MAX_DEVICES) { begin_device(); return; }
    if (!state.devices) { if (!machine_line(key, rest)) unreadable(key, rest); return; }
    Device *it = &state.device[state.devices - 1];
    if (!figure_line(it, key, rest) && !health_line(it, key, rest) && !place_line(it, key, rest)
        && !list_line(it, key, rest)) unreadable(key, rest);
}

/* Read the state file if it is another than at the last call. */
static void refresh(void)
{
    const char *said = getenv("FAKE_NVML_STATE"), *path = said ? said : "/usr/share/fake-nvml/state";
    struct stat now = {0};
    char line[512];
    FILE *file;
    if (stat(path, &now)) { readable = 0; return; }
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

int enter(const char *call)
{
    refresh();
    if (!readable) return DRIVER_NOT_LOADED;
    for (int i = 0; i < state.failures; i++)
        if (!strcmp(state.failure[i].call, call)) return state.failure[i].error;
    return started > 0 || !strncmp(call, "nvmlInit", 8) ? SUCCESS : UNINITIALIZED;
}

int enter_any(const char *call, void *handle, Device **device, Instance **instance)
{
    int gpu = (int)((size_t)handle & 0xff) - 1, part = (int)((size_t)handle >> 8) - 1;
    int error = enter(call);
    if (error) return error;
    if (gpu < 0 || gpu >= state.devices) return INVALID_ARGUMENT;
    *device = &state.device[gpu];
    if (part >= (*device)->instances) return INVALID_ARGUMENT; /* it was taken apart meanwhile */
    *instance = part < 0 ? 0 : &(*device)->instance[part];
    return (*device)->lost;
}

int enter_gpu(const char *call, void *handle, Device **device)
{
    Instance *instance = 0;
    int error = enter_any(call, handle, device, &instance);
    return error ? error : instance ? NOT_SUPPORTED : SUCCESS;
}

int text(char *to, unsigned length, const char *from)
{
    if (strlen(from) + 1 > length) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

const char *side_file(const char *variable, const char *ending, char *path)
{
    const char *said = getenv(variable), *beside = getenv("FAKE_NVML_STATE");
    if (said) snprintf(path, PATH, "%s", said);
    else snprintf(path, PATH, "%s%s", beside ? beside : "", ending);
    return path;
}
