/* What the parts of the fake share: the state of the node, and how a call begins and ends. See ../README.md. */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>
#include <stddef.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       DRIVER_NOT_LOADED = 9, TIMEOUT = 10, GPU_IS_LOST = 15, OPERATING_SYSTEM = 17, VERSION_MISMATCH = 25 };
enum { MAX_DEVICES = 64, MAX_PROCESSES = 256, MAX_FAILURES = 64, MAX_INSTANCES = 8, MAX_LINKS = 18, MAX_XIDS = 64,
       MAX_SAMPLES = 64, TEXT = 96, PATH = 512 };

typedef unsigned long long u64;

typedef struct { unsigned pid; long long bytes; char kind; int gpu_instance, compute_instance; } Process;
typedef struct { unsigned pid, percent; u64 when; } Sampled;
typedef struct { char uuid[TEXT], profile[TEXT]; int gpu_instance, compute_instance, slices; long long mib; } Instance;
typedef struct { int active, kind; char remote[TEXT]; } Link;
typedef struct { u64 number; unsigned xid; int gpu_instance, compute_instance; } Xid;

/* -1 in a figure: it has no line. */
typedef struct {
    char uuid[TEXT], name[TEXT], pci[TEXT];
    long long total, reserved, used; /* MiB */
    long long energy, throttle, ecc_error[4];
    int utilisation, temperature, power, power_limit, sm_clock, memory_clock, most_sm_clock, most_memory_clock;
    int ecc, ecc_pending, remapped[4], retired[3], recovery, numa, major, minor, persistence, compute_mode;
    int mig, mig_pending, most_instances, lost; /* lost: 0 is not lost */
    int topology[MAX_DEVICES];
    Link link[MAX_LINKS];
    int processes, samples, instances, xids;
    Process process[MAX_PROCESSES];
    Sampled sampled[MAX_SAMPLES];
    Instance instance[MAX_INSTANCES];
    Xid xid[MAX_XIDS];
} Device;

typedef struct {
    char driver[TEXT], nvml[TEXT];
    int cuda, devices, failures;
    struct { char call[TEXT]; int error; } failure[MAX_FAILURES];
    Device device[MAX_DEVICES];
} State;

extern State state;
extern int started;
extern pthread_mutex_t lock;

/* A handle is the gpu's place in the file plus one; that of a MIG instance has its own place plus one above that. */
#define HANDLE(gpu, instance) ((void *)(size_t)(((gpu) + 1) | ((instance) + 1) << 8))
#define GPU_HANDLE(gpu) HANDLE(gpu, -1)

int enter(const char *call);                                         /* what every call does first: 0 or its error */
int enter_gpu(const char *call, void *handle, Device **device);     /* the same for a gpu; no MIG instance */
int enter_any(const char *call, void *handle, Device **device, Instance **instance); /* instance: 0 for a gpu */
int text(char *to, unsigned length, const char *from);
const char *side_file(const char *variable, const char *ending, char *path); /* beside the state file */
u64 allocated(const char *uuid, const char *cgroup); /* bytes; cgroup 0: everywhere */
int allocations(const char *uuid, Process *to, int room);

#define BEGIN int error; pthread_mutex_lock(&lock);
#define END pthread_mutex_unlock(&lock); return error;

#endif
