/* The compute mode of a gpu: the state file's, until it is set; what was set stands beside it (`.modes`). */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <string.h>

/* The last line about a gpu counts. */
static int read_mode(const Device *device)
{
    char path[PATH], uuid[TEXT];
    int mode = device->compute_mode, line;
    FILE *file = mode < 0 ? 0 : fopen(side_file("FAKE_NVML_MODES", ".modes", path), "r");
    if (!file) return mode;
    while (fscanf(file, "%95s %d", uuid, &line) == 2)
        if (!strcmp(uuid, device->uuid)) mode = line;
    fclose(file);
    return mode;
}

int nvmlDeviceGetComputeMode(void *handle, unsigned *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error) {
        int mode = read_mode(device);
        if (mode < 0) error = NOT_SUPPORTED;
        else *to = (unsigned)mode;
    }
    END
}

int nvmlDeviceSetComputeMode(void *handle, unsigned mode)
{
    char path[PATH];
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && device->compute_mode < 0) error = NOT_SUPPORTED;
    if (!error) {
        FILE *file = fopen(side_file("FAKE_NVML_MODES", ".modes", path), "a");
        if (file) {
            fprintf(file, "%s %u\n", device->uuid, mode);
            fclose(file);
        } else error = OPERATING_SYSTEM;
    }
    END
}
