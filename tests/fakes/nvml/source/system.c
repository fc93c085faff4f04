/* The library as a whole, and which gpus there are. */
#include "fake.h"

#include <string.h>

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

const char *nvmlErrorString(int error)
{
    switch (error) {
    case NOT_SUPPORTED: return "Not Supported";
    case GPU_IS_LOST: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    default: return "an error";
    }
}

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
    error = index < MAX_DEVICES ? enter_gpu(__func__, GPU_HANDLE(index), &device) : INVALID_ARGUMENT;
    if (!error) *to = GPU_HANDLE(index);
    END
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **to)
{
    BEGIN
    error = enter(__func__);
    for (int i = 0, none = !error; !error && i < state.devices; i++) {
        Device *device = &state.device[i];
        for (int part = -1; part < device->instances; part++)
            if (!strcmp(part < 0 ? device->uuid : device->instance[part].uuid, uuid)) {
                *to = HANDLE(i, part);
                error = device->lost;
                none = 0;
            }
        if (!none) break;
        if (i + 1 == state.devices) error = NOT_FOUND;
    }
    if (!error && !state.devices) error = NOT_FOUND;
    END
}

int nvmlDeviceGetIndex(void *handle, unsigned *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error) *to = (unsigned)(device - state.device);
    END
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *to) { return nvmlDeviceGetIndex(handle, to); }
