/* Memory limits of cgroups, as drivers since r615 keep them. Their file is described in ../README.md. */
#define _GNU_SOURCE
#include "fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LIMITS = 1024 };

typedef struct { const char *cgroup; u64 soft, hard; } SetLimits;
typedef struct { const char *cgroup; u64 soft, hard, used; } GetLimits;
typedef struct { char uuid[TEXT], cgroup[PATH]; u64 soft, hard; } Limit;

static Limit limits[MAX_LIMITS];

static int exists(const char *path)
{
    struct stat found;
    return path[0] == '/' && !stat(path, &found);
}

/* Those of cgroups that exist; how many. */
static int read_limits(void)
{
    char path[PATH], line[PATH + 256];
    int count = 0;
    FILE *file = fopen(side_file("FAKE_NVML_LIMITS", ".limits", path), "r");
    if (!file) return 0;
    while (count < MAX_LIMITS && fgets(line, sizeof line, file)) {
        Limit *one = &limits[count];
        int at = 0;
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%95s %llu %llu %n", one->uuid, &one->soft, &one->hard, &at) < 3 || !at) continue;
        snprintf(one->cgroup, PATH, "%s", line + at);
        if (exists(one->cgroup)) count++;
    }
    fclose(file);
    return count;
}

static int write_limits(int count)
{
    char path[PATH], fresh[PATH + 16];
    FILE *file;
    side_file("FAKE_NVML_LIMITS", ".limits", path);
    snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid());
    file = fopen(fresh, "w");
    if (!file) return OPERATING_SYSTEM;
    for (int i = 0; i < count; i++)
        fprintf(file, "%s %llu %llu %s\n", limits[i].uuid, limits[i].soft, limits[i].hard, limits[i].cgroup);
    fclose(file);
    return rename(fresh, path) ? OPERATING_SYSTEM : SUCCESS;
}

static Limit *find(int count, const char *uuid, const char *cgroup)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(limits[i].uuid, uuid) && !strcmp(limits[i].cgroup, cgroup)) return &limits[i];
    return 0;
}

static int enter_limits(const char *call, void *handle, const char *cgroup, Device **device)
{
    int error = enter_gpu(call, handle, device);
    if (error) return error;
    if ((*device)->mig > 0) return NOT_SUPPORTED;
    return cgroup && exists(cgroup) ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceSetMemoryLimits_v1(void *handle, const SetLimits *wanted)
{
    char path[PATH];
    Device *device;
    int file;
    BEGIN
    error = enter_limits(__func__, handle, wanted->cgroup, &device);
    if (!error && wanted->soft > wanted->hard) error = INVALID_ARGUMENT;
    if (!error) {
        int count;
        Limit *one;
        snprintf(path, sizeof path, "%s.lock", getenv("FAKE_NVML_STATE"));
        file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (file >= 0) flock(file, LOCK_EX);
        count = read_limits();
        one = find(count, device->uuid, wanted->cgroup);
        if (!wanted->soft && wanted->hard == ~0ull) {
            if (one) *one = limits[--count];
        } else if (!one && count == MAX_LIMITS) error = INSUFFICIENT_SIZE;
        else {
            if (!one) one = &limits[count++];
            snprintf(one->uuid, TEXT, "%s", device->uuid);
            snprintf(one->cgroup, PATH, "%s", wanted->cgroup);
            one->soft = wanted->soft, one->hard = wanted->hard;
        }
        if (!error) error = write_limits(count);
        if (file >= 0) close(file);
    }
    END
}

int nvmlDeviceGetMemoryLimits_v1(void *handle, GetLimits *to)
{
    Device *device;
    BEGIN
    error = enter_limits(__func__, handle, to->cgroup, &device);
    if (!error) {
        Limit *one = find(read_limits(), device->uuid, to->cgroup);
        to->soft = one ? one->soft : 0;
        to->hard = one ? one->hard : ~0ull;
        to->used = allocated(device->uuid, to->cgroup);
    }
    END
}
