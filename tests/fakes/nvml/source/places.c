/* Where a gpu sits, and what it is linked to. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

typedef struct {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
} Pci;

/* 0000:3B:00.0, written as NVML does: a domain of eight digits. */
static int pci(const char *place, Pci *to)
{
    unsigned domain, bus, device;
    if (sscanf(place, "%x:%x:%x", &domain, &bus, &device) != 3) return NOT_SUPPORTED;
    *to = (Pci){.domain = domain, .bus = bus, .device = device, .id = 0x20b210de};
    snprintf(to->legacy, sizeof to->legacy, "%04X:%02X:%02X.0", domain & 0xffff, bus & 0xff, device & 0xff);
    snprintf(to->bus_id, sizeof to->bus_id, "%08X:%02X:%02X.0", domain, bus & 0xff, device & 0xff);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, Pci *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error) error = pci(device->pci, to);
    END
}

/* The nodes it is near to, as bits; `size` words of 64. */
int nvmlDeviceGetMemoryAffinity(void *handle, unsigned size, u64 *to, unsigned scope)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && (!size || scope > 1)) error = INVALID_ARGUMENT;
    if (!error && device->numa < 0) error = NOT_SUPPORTED;
    if (!error) {
        memset(to, 0, size * sizeof *to);
        to[0] = 1ull << (device->numa & 63);
    }
    END
}

static int enter_link(const char *call, void *handle, unsigned link, Link **to)
{
    Device *device;
    int error = enter_gpu(call, handle, &device);
    if (error) return error;
    if (link >= MAX_LINKS) return INVALID_ARGUMENT;
    *to = &device->link[link];
    return (*to)->active < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *to)
{
    Link *found;
    BEGIN
    error = enter_link(__func__, handle, link, &found);
    if (!error) *to = (unsigned)found->active;
    END
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, Pci *to)
{
    Link *found;
    BEGIN
    error = enter_link(__func__, handle, link, &found);
    if (!error) error = pci(found->remote, to);
    END
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, unsigned *to)
{
    Link *found;
    BEGIN
    error = enter_link(__func__, handle, link, &found);
    if (!error) *to = (unsigned)found->kind;
    END
}

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *to)
{
    Device *first, *second;
    BEGIN
    error = enter_gpu(__func__, one, &first);
    if (!error) error = enter_gpu(__func__, other, &second);
    if (!error) {
        int level = first->topology[second - state.device];
        if (first == second) level = 0;
        if (level < 0) error = NOT_SUPPORTED;
        else *to = (unsigned)level;
    }
    END
}
