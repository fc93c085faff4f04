/* MIG: the mode of a gpu, and the instances it is cut into. */
#include "fake.h"

#include <string.h>

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    u64 mib;
} Attributes;

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && device->mig < 0) error = NOT_SUPPORTED;
    if (!error) *current = (unsigned)device->mig, *pending = (unsigned)device->mig_pending;
    END
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error) *to = device->most_instances >= 0 ? (unsigned)device->most_instances : device->mig < 0 ? 0 : 7;
    END
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && device->mig < 1) error = NOT_SUPPORTED;
    if (!error && index >= (unsigned)device->instances) error = NOT_FOUND;
    if (!error) *to = HANDLE(device - state.device, (int)index);
    END
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *to)
{
    Device *device;
    Instance *instance;
    BEGIN
    error = enter_any(__func__, handle, &device, &instance);
    if (!error) *to = instance != 0;
    END
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **to)
{
    Device *device;
    Instance *instance;
    BEGIN
    error = enter_any(__func__, handle, &device, &instance);
    if (!error && !instance) error = INVALID_ARGUMENT;
    if (!error) *to = GPU_HANDLE(device - state.device);
    END
}

static int of_instance(const char *call, void *handle, size_t offset, unsigned *to)
{
    Device *device;
    Instance *instance;
    BEGIN
    error = enter_any(call, handle, &device, &instance);
    if (!error && !instance) error = INVALID_ARGUMENT;
    if (!error) *to = (unsigned)*(int *)((char *)instance + offset);
    END
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *to)
{
    return of_instance(__func__, handle, offsetof(Instance, gpu_instance), to);
}
int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *to)
{
    return of_instance(__func__, handle, offsetof(Instance, compute_instance), to);
}

int nvmlDeviceGetAttributes_v2(void *handle, Attributes *to)
{
    Device *device;
    Instance *instance;
    BEGIN
    error = enter_any(__func__, handle, &device, &instance);
    if (!error && !instance) error = INVALID_ARGUMENT;
    if (!error)
        *to = (Attributes){.multiprocessors = 14u * (unsigned)instance->slices,
                           .copy_engines = 1,
                           .gpu_slices = (unsigned)instance->slices,
                           .compute_slices = (unsigned)instance->slices,
                           .mib = (u64)instance->mib};
    END
}
