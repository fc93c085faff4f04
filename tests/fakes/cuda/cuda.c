/* A libcuda.so.1 without a gpu, on the node that the fake NVML library describes (../nvml/README.md).
 *
 * It has the calls of gpu/cuda/driver.py. What a process allocates it writes into the file `.used`, where the fake NVML
 * library finds it; and it refuses what a real driver would: memory beyond the gpu, beyond the limit of the cgroup (file
 * `.limits`), beyond the limit of an MPS client, gpus that CUDA_VISIBLE_DEVICES hides, a gpu in exclusive-process mode
 * that another process uses. In the file STATE and `.cuda` a test says what it shall not honour, and how large a context is:
 *
 *   ignores limits           also: visible, mps, exclusive
 *   context 300              MiB
 *   breaks 700               launching a kernel answers with this error
 *
 * STATE is compiled in, for a program that clears its environment finds the same driver. The test builds it: harness.py.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_CONTEXT = 201, DEVICE_UNAVAILABLE = 46 };
enum { MAX_GPUS = 64, MAX_USES = 1024, MAX_BLOCKS = 65536, TEXT = 96, PATH = 1024 };

typedef unsigned long long u64;
typedef struct { char uuid[TEXT]; u64 bytes; int mode, is_instance; } Gpu;
typedef struct { char uuid[TEXT], cgroup[PATH]; int pid; u64 bytes; } Use;

static Gpu gpus[MAX_GPUS], *visible[MAX_GPUS];
static int gpu_count, visible_count, ready, ignores_visible, ignores_limits, ignores_mps, ignores_exclusive, breaks;
static u64 context = 300ull << 20;
static Use uses[MAX_USES];
static int use_count;
static Gpu *current;
static u64 blocks[MAX_BLOCKS];
static int block_count;

static FILE *side_file(const char *suffix, const char *mode)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s%s", STATE, suffix);
    return fopen(path, mode);
}

static void read_wishes(void)
{
    char line[256], word[TEXT];
    FILE *file = side_file(".cuda", "r");
    ignores_visible = ignores_limits = ignores_mps = ignores_exclusive = breaks = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "context %llu", &context) == 1) context <<= 20;
        if (sscanf(line, "breaks %d", &breaks) == 1) continue;
        if (sscanf(line, "ignores %95s", word) != 1) continue;
        ignores_visible |= !strcmp(word, "visible");
        ignores_limits |= !strcmp(word, "limits");
        ignores_mps |= !strcmp(word, "mps");
        ignores_exclusive |= !strcmp(word, "exclusive");
    }
    fclose(file);
}

/* The mode that was set by NVML, which is kept beside the state file. */
static void read_modes(void)
{
    char uuid[TEXT];
    int mode;
    FILE *file = side_file(".modes", "r");
    if (!file) return;
    while (fscanf(file, "%95s %d", uuid, &mode) == 2)
        for (int i = 0; i < gpu_count; i++)
            if (!strcmp(gpus[i].uuid, uuid)) gpus[i].mode = mode;
    fclose(file);
}

static void read_gpus(void)
{
    char line[512], rest[512];
    u64 total, reserved, mib;
    int mig = 0;
    FILE *file = side_file("", "r");
    gpu_count = 0;
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        Gpu *gpu = gpu_count ? &gpus[gpu_count - 1] : 0;
        if (!strncmp(line, "device", 6) && gpu_count < MAX_GPUS) {
            memset(&gpus[gpu_count++], 0, sizeof *gpus);
            mig = 0;
        } else if (!gpu && !mig) continue;
        else if (!mig && sscanf(line, "uuid %95s", rest) == 1) memcpy(gpu->uuid, rest, TEXT);
        else if (!mig && sscanf(line, "memory %llu %llu", &total, &reserved) == 2) gpu->bytes = (total - reserved) << 20;
        else if (sscanf(line, "compute_mode %d", &gpu->mode) == 1) continue;
        else if (sscanf(line, "mig %d", &mig) == 1 && mig) gpu_count--; /* its instances take its place */
        else if (mig && sscanf(line, "instance %95s %*d %*d %llu", rest, &mib) == 2 && gpu_count < MAX_GPUS) {
            gpu = &gpus[gpu_count++];
            memset(gpu, 0, sizeof *gpu);
            memcpy(gpu->uuid, rest, TEXT);
            gpu->bytes = mib << 20, gpu->is_instance = 1;
        }
    }
    fclose(file);
    read_modes();
}

static Gpu *named(const char *name)
{
    char *end;
    long index = strtol(name, &end, 10);
    if (*name && !*end) return index >= 0 && index < gpu_count ? &gpus[index] : 0;
    for (int i = 0; i < gpu_count; i++)
        if (!strncmp(gpus[i].uuid, name, strlen(name))) return &gpus[i];
    return 0;
}

static void choose_visible(void)
{
    const char *wished = ignores_visible ? 0 : getenv("CUDA_VISIBLE_DEVICES");
    char copy[PATH], *next = copy, *name;
    visible_count = 0;
    if (!wished) {
        for (int i = 0; i < gpu_count; i++) visible[visible_count++] = &gpus[i];
        return;
    }
    snprintf(copy, sizeof copy, "%s", wished);
    while ((name = strsep(&next, ",")) && *name) {
        Gpu *gpu = named(name);
        if (!gpu) return; /* CUDA stops at the first that it does not know */
        visible[visible_count++] = gpu;
    }
}

/* The folder of this process' cgroup: of version 2, or else of version 1's memory controller. */
static void own_cgroup(char *to)
{
    char line[PATH], *path;
    struct stat found;
    FILE *file = fopen("/proc/self/cgroup", "r");
    strcpy(to, "/");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::", 3)) continue;
        path = line + 3;
        snprintf(to, PATH, "/sys/fs/cgroup/unified%.900s", path);
        if (stat(to, &found)) snprintf(to, PATH, "/sys/fs/cgroup%.900s", path);
    }
    fclose(file);
}

static int is_within(const char *cgroup, const char *above)
{
    size_t size = strlen(above);
    return !strncmp(cgroup, above, size) && (!cgroup[size] || cgroup[size] == '/');
}

static int lock(void)
{
    int file = open(STATE ".lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file >= 0) flock(file, LOCK_EX);
    return file;
}

static void read_uses(void)
{
    char line[PATH + 256];
    FILE *file = side_file(".used", "r");
    use_count = 0;
    if (!file) return;
    while (use_count < MAX_USES && fgets(line, sizeof line, file)) {
        Use *use = &uses[use_count];
        int at = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%95s %d %llu %n", use->uuid, &use->pid, &use->bytes, &at) < 3 || !at) continue;
        snprintf(use->cgroup, PATH, "%.1000s", line + at);
        if (!kill(use->pid, 0) || errno != ESRCH) use_count++;
    }
    fclose(file);
}

static void write_uses(void)
{
    char fresh[PATH];
    FILE *file;
    snprintf(fresh, sizeof fresh, "%s.used.%d", STATE, (int)getpid());
    file = fopen(fresh, "w");
    if (!file) return;
    for (int i = 0; i < use_count; i++)
        if (uses[i].bytes) fprintf(file, "%s %d %llu %s\n", uses[i].uuid, uses[i].pid, uses[i].bytes, uses[i].cgroup);
    fclose(file);
    rename(fresh, STATE ".used");
}

static Use *own_use(void)
{
    for (int i = 0; i < use_count; i++)
        if (uses[i].pid == getpid() && !strcmp(uses[i].uuid, current->uuid)) return &uses[i];
    if (use_count == MAX_USES) return 0;
    memset(&uses[use_count], 0, sizeof *uses);
    memcpy(uses[use_count].uuid, current->uuid, TEXT);
    uses[use_count].pid = getpid();
    own_cgroup(uses[use_count].cgroup);
    return &uses[use_count++];
}

static u64 used_within(const char *cgroup)
{
    u64 sum = 0;
    for (int i = 0; i < use_count; i++)
        if (!strcmp(uses[i].uuid, current->uuid) && is_within(uses[i].cgroup, cgroup)) sum += uses[i].bytes;
    return sum;
}

static int is_mps_client(void)
{
    const char *pipe = ignores_mps ? 0 : getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH];
    int pid = 0;
    FILE *file;
    if (!pipe) return 0;
    snprintf(path, sizeof path, "%.900s/nvidia-cuda-mps-control.pid", pipe);
    file = fopen(path, "r");
    if (!file) return 0;
    if (fscanf(file, "%d", &pid) != 1) pid = 0;
    fclose(file);
    return pid > 0 && !kill(pid, 0);
}

/* The least of all that bounds this process on its gpu, and what counts towards it. */
static void bounds(u64 *most, u64 *used)
{
    char line[PATH + 256], cgroup[PATH], uuid[TEXT], unit = 0;
    const char *limit = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    u64 hard, amount;
    FILE *file = ignores_limits ? 0 : side_file(".limits", "r");
    own_cgroup(cgroup);
    *most = current->bytes, *used = used_within("");
    if (limit && is_mps_client() && current == visible[0] && sscanf(limit, "0=%llu%c", &amount, &unit) == 2) {
        amount <<= unit == 'G' ? 30 : 20;
        if (amount + *used < *most + own_use()->bytes) *most = amount, *used = own_use()->bytes;
    }
    while (file && fgets(line, sizeof line, file)) {
        int at = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%95s %*u %llu %n", uuid, &hard, &at) < 2 || !at || strcmp(uuid, current->uuid)) continue;
        if (!is_within(cgroup, line + at)) continue;
        if (hard < *most) *most = hard, *used = used_within(line + at);
    }
    if (file) fclose(file);
}

static int take(u64 bytes)
{
    u64 most, used;
    int file = lock(), answer = OUT_OF_MEMORY;
    Use *own;
    read_uses();
    own = own_use();
    bounds(&most, &used);
    if (own && used + bytes <= most && used_within("") + bytes <= current->bytes) {
        own->bytes += bytes;
        answer = SUCCESS;
    }
    write_uses();
    if (file >= 0) close(file);
    return answer;
}

int cuInit(unsigned flags)
{
    if (flags) return INVALID_VALUE;
    read_wishes();
    read_gpus();
    choose_visible();
    ready = 1;
    return visible_count ? SUCCESS : NO_DEVICE;
}

int cuDeviceGetCount(int *to) { return ready ? (*to = visible_count, SUCCESS) : NOT_INITIALIZED; }
int cuDeviceGet(int *to, int ordinal)
{
    if (ordinal < 0 || ordinal >= visible_count) return INVALID_DEVICE;
    *to = ordinal;
    return SUCCESS;
}

int cuDeviceGetUuid_v2(unsigned char *to, int device)
{
    const char *text = strchr(visible[device]->uuid, '-');
    for (int i = 0; text && *text && i < 32; text++)
        if (isxdigit((unsigned char)*text)) {
            int digit = isdigit((unsigned char)*text) ? *text - '0' : tolower(*text) - 'a' + 10;
            to[i / 2] = i % 2 ? to[i / 2] | digit : digit << 4;
            i++;
        }
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **to, int device)
{
    int others = 0, file;
    current = visible[device];
    file = lock();
    read_uses();
    for (int i = 0; i < use_count; i++)
        others += uses[i].pid != getpid() && !strcmp(uses[i].uuid, current->uuid);
    if (file >= 0) close(file);
    if (current->mode == 3 && others && !is_mps_client() && !ignores_exclusive) return DEVICE_UNAVAILABLE;
    *to = current;
    return take(context);
}

int cuCtxSetCurrent(void *wished) { return wished ? SUCCESS : INVALID_CONTEXT; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    u64 most, used;
    int file;
    if (!current) return INVALID_CONTEXT;
    file = lock();
    read_uses();
    bounds(&most, &used);
    if (file >= 0) close(file);
    *total = most, *free_bytes = most > used ? most - used : 0;
    return SUCCESS;
}

int cuMemAlloc_v2(u64 *to, size_t bytes)
{
    int answer;
    if (!current) return INVALID_CONTEXT;
    if (block_count == MAX_BLOCKS) return OUT_OF_MEMORY;
    answer = take(bytes);
    if (answer == SUCCESS) blocks[block_count] = bytes, *to = ++block_count;
    return answer;
}

int cuMemFree_v2(u64 address)
{
    int file;
    if (!address || address > (u64)block_count || !blocks[address - 1]) return INVALID_VALUE;
    file = lock();
    read_uses();
    own_use()->bytes -= blocks[address - 1];
    blocks[address - 1] = 0;
    write_uses();
    if (file >= 0) close(file);
    return SUCCESS;
}

int cuModuleLoadData(void **to, const char *program)
{
    *to = (void *)program;
    return strstr(program, ".visible .entry") ? SUCCESS : INVALID_VALUE;
}
int cuModuleGetFunction(void **to, void *module, const char *name)
{
    *to = module;
    return strstr(module, name) ? SUCCESS : INVALID_VALUE;
}

/* The gpu's time is shared by all that use it. */
int cuLaunchKernel(void)
{
    int sharing = 0;
    read_wishes();
    if (breaks) return breaks;
    read_uses();
    for (int i = 0; i < use_count; i++) sharing += current && !strcmp(uses[i].uuid, current->uuid);
    usleep(1000 * (sharing ? sharing : 1));
    return SUCCESS;
}
int cuCtxSynchronize(void) { return SUCCESS; }

int cuGetErrorName(int code, const char **to)
{
    *to = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE"
        : code == DEVICE_UNAVAILABLE ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}
