/* Who is on a gpu: the processes of the state file, and those that a fake CUDA driver has written down. */
#include "fake.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; } ProcessInfo;
typedef struct { unsigned pid; u64 when; unsigned sm, memory, encoder, decoder; } Sample;

static int lives(unsigned pid) { return !kill((int)pid, 0) || errno == EPERM; }

static int within(const char *path, const char *cgroup)
{
    size_t length = strlen(cgroup);
    return !strncmp(path, cgroup, length) && (!path[length] || path[length] == '/');
}

/* Calls `each` for every line about `uuid` whose process lives. */
static void read_used(const char *uuid, void (*each)(unsigned pid, u64 bytes, const char *cgroup, void *with), void *with)
{
    char path[PATH], line[PATH + 256], whose[TEXT];
    unsigned pid;
    u64 bytes;
    int at;
    FILE *file = fopen(side_file("FAKE_NVML_USED", ".used", path), "r");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        at = 0;
        if (sscanf(line, "%95s %u %llu %n", whose, &pid, &bytes, &at) < 3 || !at) continue;
        if (!strcmp(whose, uuid) && lives(pid)) each(pid, bytes, line + at, with);
    }
    fclose(file);
}

typedef struct { const char *cgroup; u64 bytes; } Sum;
static void add(unsigned pid, u64 bytes, const char *cgroup, void *with)
{
    Sum *sum = with;
    (void)pid;
    if (!sum->cgroup || within(cgroup, sum->cgroup)) sum->bytes += bytes;
}

u64 allocated(const char *uuid, const char *cgroup)
{
    Sum sum = {cgroup, 0};
    read_used(uuid, add, &sum);
    return sum.bytes;
}

typedef struct { Process *to; int count, room; } List;
static void append(unsigned pid, u64 bytes, const char *cgroup, void *with)
{
    List *list = with;
    (void)cgroup;
    if (list->count < list->room) list->to[list->count++] = (Process){pid, (long long)bytes, 'c', -1, -1};
}

int allocations(const char *uuid, Process *to, int room)
{
    List list = {to, 0, room};
    read_used(uuid, append, &list);
    return list.count;
}

static int gather(Device *device, Instance *instance, char kind, Process *to)
{
    int found = 0;
    for (int i = 0; i < device->processes; i++) {
        Process *one = &device->process[i];
        int here = !instance || (one->gpu_instance == instance->gpu_instance
                                 && one->compute_instance == instance->compute_instance);
        if (one->kind == kind && here) to[found++] = *one;
    }
    if (kind != 'c') return found;
    for (int i = -1; i < device->instances; i++) {
        Instance *part = i < 0 ? 0 : &device->instance[i];
        int count;
        if (instance && part != instance) continue;
        count = allocations(part ? part->uuid : device->uuid, to + found, MAX_PROCESSES - found);
        for (int n = 0; part && n < count; n++) {
            to[found + n].gpu_instance = part->gpu_instance;
            to[found + n].compute_instance = part->compute_instance;
        }
        found += count;
    }
    return found;
}

static int processes(const char *call, void *handle, char kind, unsigned *count, ProcessInfo *to)
{
    static Process here[2 * MAX_PROCESSES];
    Device *device;
    Instance *instance;
    unsigned room = *count;
    BEGIN
    error = enter_any(call, handle, &device, &instance);
    if (!error) {
        unsigned found = (unsigned)gather(device, instance, kind, here);
        for (unsigned i = 0; to && i < found && i < room; i++)
            to[i] = (ProcessInfo){here[i].pid, here[i].bytes < 0 ? ~0ull : (u64)here[i].bytes,
                                  (unsigned)here[i].gpu_instance, (unsigned)here[i].compute_instance};
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

int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *to)
{
    return processes(__func__, handle, 'm', count, to);
}

/* Samples after `since`; NOT_FOUND when there is none, as real gpus answer. No line at all: it keeps none. */
int nvmlDeviceGetProcessUtilization(void *handle, Sample *to, unsigned *count, u64 since)
{
    Device *device;
    unsigned room = *count, found = 0;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && (device->mig > 0 || !device->samples)) error = NOT_SUPPORTED;
    if (!error) {
        for (int i = 0; i < device->samples; i++) {
            Sampled *one = &device->sampled[i];
            if (one->when <= since) continue;
            if (to && found < room) to[found] = (Sample){one->pid, one->when, one->percent, 0, 0, 0};
            found++;
        }
        *count = found;
        error = !found ? NOT_FOUND : found > room || !to ? INSUFFICIENT_SIZE : SUCCESS;
    }
    END
}
