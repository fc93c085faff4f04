/* A libvgpu.so with the interface of HAMi-core, for the tests: a library that is loaded before all others, and limits
 * the memory that a program takes of the fake gpu (../cuda/cuda.c).
 *
 *   CUDA_DEVICE_MEMORY_LIMIT_<i>      of the i-th visible gpu, as `6144m`; 0 or none is no limit
 *   CUDA_DEVICE_MEMORY_SHARED_CACHE   the file by which all processes of a container count together
 *   CUDA_DISABLE_CONTROL              with `true` it does nothing
 *
 * Programs look up the driver's functions by dlsym, so it stands before that. A new count begins with the file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, MAX_BLOCKS = 65536, MAX_USES = 256 };
typedef unsigned long long u64;
typedef struct { int pid, device; u64 bytes; } Use;

static void *(*real_dlsym)(void *, const char *);
static int (*real_retain)(void **, int), (*real_alloc)(u64 *, size_t), (*real_free)(u64), (*real_info)(size_t *, size_t *);
static struct { u64 address, bytes; } blocks[MAX_BLOCKS];
static int device;

static u64 limit(void)
{
    char name[64], unit = 0;
    u64 amount = 0;
    const char *off = getenv("CUDA_DISABLE_CONTROL"), *text;
    snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", device);
    text = getenv(name);
    if ((off && !strcmp(off, "true")) || !text || sscanf(text, "%llu%c", &amount, &unit) < 1) return 0;
    return amount << (unit == 'g' ? 30 : unit == 'm' ? 20 : unit == 'k' ? 10 : 0);
}

/* Add to what this process has, unless all have more than `most` then. Returns what all have, ~0 if that is too much. */
static u64 count(long long bytes, u64 most)
{
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    Use uses[MAX_USES], *own = 0;
    u64 sum = 0;
    int file = open(path ? path : "/tmp/cudevshr.cache", O_RDWR | O_CREAT | O_CLOEXEC, 0666), found;
    if (file < 0) return ~0ull;
    flock(file, LOCK_EX);
    found = (int)(pread(file, uses, sizeof uses, 0) / (ssize_t)sizeof *uses);
    for (int i = 0; i < found; i++) {
        if (kill(uses[i].pid, 0) && errno == ESRCH) uses[i].bytes = 0;
        if (uses[i].device != device) continue;
        if (uses[i].pid == getpid()) own = &uses[i];
        sum += uses[i].bytes;
    }
    if (!own && found < MAX_USES) own = &uses[found++], *own = (Use){getpid(), device, 0};
    if (!own || (bytes > 0 && sum + bytes > most)) sum = ~0ull;
    else own->bytes += bytes, sum += bytes;
    if (pwrite(file, uses, found * sizeof *uses, 0) < 0) sum = ~0ull;
    close(file);
    return sum;
}

static int retain(void **to, int wanted)
{
    device = wanted;
    return real_retain(to, wanted);
}

static int take(u64 *to, size_t bytes)
{
    u64 most = limit();
    int at = 0, answer;
    if (!most) return real_alloc(to, bytes);
    while (at < MAX_BLOCKS && blocks[at].bytes) at++;
    if (at == MAX_BLOCKS || count((long long)bytes, most) == ~0ull) return OUT_OF_MEMORY;
    answer = real_alloc(to, bytes);
    if (answer == SUCCESS) blocks[at].address = *to, blocks[at].bytes = bytes;
    else count(-(long long)bytes, most);
    return answer;
}

static int give(u64 address)
{
    for (int i = 0; i < MAX_BLOCKS; i++)
        if (blocks[i].bytes && blocks[i].address == address) count(-(long long)blocks[i].bytes, 0), blocks[i].bytes = 0;
    return real_free(address);
}

static int info(size_t *free_bytes, size_t *total)
{
    u64 most = limit(), used = most ? count(0, most) : 0;
    int answer = real_info(free_bytes, total);
    if (answer == SUCCESS && most && most < *total) *total = most, *free_bytes = most > used ? most - used : 0;
    return answer;
}

void *dlsym(void *handle, const char *name)
{
    void *found;
    if (!real_dlsym) *(void **)&real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    found = real_dlsym(handle, name);
    if (!found) return found;
    if (!strcmp(name, "cuDevicePrimaryCtxRetain")) return *(void **)&real_retain = found, (void *)retain;
    if (!strcmp(name, "cuMemAlloc_v2")) return *(void **)&real_alloc = found, (void *)take;
    if (!strcmp(name, "cuMemFree_v2")) return *(void **)&real_free = found, (void *)give;
    if (!strcmp(name, "cuMemGetInfo_v2")) return *(void **)&real_info = found, (void *)info;
    return found;
}
