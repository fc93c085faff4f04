/* What a gpu is, and what it measures. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

/* What pynvml allocates for us to fill. */
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } Memory2;
typedef struct { unsigned gpu, memory; } Utilisation;
typedef struct { unsigned version, sensor; int celsius; } Temperature;

int nvmlDeviceGetUUID(void *handle, char *to, unsigned length)
{
    Device *device;
    Instance *instance;
    BEGIN
    error = enter_any(__func__, handle, &device, &instance);
    if (!error) error = text(to, length, instance ? instance->uuid : device->uuid);
    END
}

int nvmlDeviceGetName(void *handle, char *to, unsigned length)
{
    char name[2 * TEXT + 8];
    Device *device;
    Instance *instance;
    BEGIN
    error = enter_any(__func__, handle, &device, &instance);
    if (!error && !*device->name) error = NOT_SUPPORTED;
    if (!error) {
        snprintf(name, sizeof name, instance ? "%s MIG %s" : "%s", device->name, instance ? instance->profile : "");
        error = text(to, length, name);
    }
    END
}

static int memory(const char *call, void *handle, Memory2 *to)
{
    Device *device;
    Instance *instance;
    BEGIN
    error = enter_any(call, handle, &device, &instance);
    if (!error && device->total < 0) error = NOT_SUPPORTED;
    if (!error) {
        to->total = (u64)(instance ? instance->mib : device->total) << 20;
        to->reserved = (u64)(instance ? 0 : device->reserved) << 20;
        to->used = ((u64)(instance ? 0 : device->used) << 20) + allocated(instance ? instance->uuid : device->uuid, 0);
        to->free = to->total - to->reserved - to->used;
    }
    END
}

/* The older call counts the driver's own part as used. */
int nvmlDeviceGetMemoryInfo(void *handle, Memory *to)
{
    Memory2 found;
    int error = memory(__func__, handle, &found);
    if (!error) *to = (Memory){found.total, found.free, found.used + found.reserved};
    return error;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *to)
{
    if (to->version != (sizeof(Memory2) | 2u << 24)) return VERSION_MISMATCH;
    return memory(__func__, handle, to);
}

int nvmlDeviceGetUtilizationRates(void *handle, Utilisation *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && (device->utilisation < 0 || device->mig > 0)) error = NOT_SUPPORTED;
    if (!error) *to = (Utilisation){(unsigned)device->utilisation, 0};
    END
}

/* A whole number at `offset` within the device. */
static int number(const char *call, void *handle, size_t offset, unsigned *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(call, handle, &device);
    if (!error) {
        int value = *(int *)((char *)device + offset);
        if (value < 0) error = NOT_SUPPORTED;
        else *to = (unsigned)value;
    }
    END
}
#define NUMBER(field, to) number(__func__, handle, offsetof(Device, field), to)

static int wide(const char *call, void *handle, size_t offset, u64 *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(call, handle, &device);
    if (!error) {
        long long value = *(long long *)((char *)device + offset);
        if (value < 0) error = NOT_SUPPORTED;
        else *to = (u64)value;
    }
    END
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *to) { return NUMBER(power, to); }
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *to) { return NUMBER(power_limit, to); }
int nvmlDeviceGetPersistenceMode(void *handle, unsigned *to) { return NUMBER(persistence, to); }
int nvmlDeviceGetTotalEnergyConsumption(void *handle, u64 *to)
{
    return wide(__func__, handle, offsetof(Device, energy), to);
}
int nvmlDeviceGetCurrentClocksEventReasons(void *handle, u64 *to)
{
    return wide(__func__, handle, offsetof(Device, throttle), to);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, u64 *to)
{
    return wide(__func__, handle, offsetof(Device, throttle), to);
}

/* type: 0 graphics, 1 SM, 2 memory */
int nvmlDeviceGetClockInfo(void *handle, unsigned type, unsigned *to)
{
    if (type > 2) return NOT_SUPPORTED;
    return type == 2 ? NUMBER(memory_clock, to) : NUMBER(sm_clock, to);
}
int nvmlDeviceGetMaxClockInfo(void *handle, unsigned type, unsigned *to)
{
    if (type > 2) return NOT_SUPPORTED;
    return type == 2 ? NUMBER(most_memory_clock, to) : NUMBER(most_sm_clock, to);
}

int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *to)
{
    return sensor ? INVALID_ARGUMENT : NUMBER(temperature, to);
}

int nvmlDeviceGetTemperatureV(void *handle, Temperature *to)
{
    if (to->version != (sizeof(Temperature) | 1u << 24)) return VERSION_MISMATCH;
    return to->sensor ? INVALID_ARGUMENT : NUMBER(temperature, (unsigned *)&to->celsius);
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && device->major < 0) error = NOT_SUPPORTED;
    if (!error) *major = device->major, *minor = device->minor;
    END
}
