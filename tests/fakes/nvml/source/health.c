/* What is wrong with a gpu: ECC, remapped rows, retired pages, the reset it wants, Xids. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { XID_CRITICAL = 8, MAX_SETS = 64, RECOVERY_ACTION = 230, POLL_MS = 10 };

int nvmlDeviceGetEccMode(void *handle, unsigned *current, unsigned *pending)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && device->ecc < 0) error = NOT_SUPPORTED;
    if (!error) *current = (unsigned)device->ecc, *pending = (unsigned)device->ecc_pending;
    END
}

/* type: 0 corrected, 1 not; counter: 0 since the driver was loaded, 1 ever */
int nvmlDeviceGetTotalEccErrors(void *handle, unsigned type, unsigned counter, u64 *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && (type > 1 || counter > 1)) error = INVALID_ARGUMENT;
    if (!error && (device->ecc < 1 || device->ecc_error[0] < 0)) error = NOT_SUPPORTED;
    if (!error) *to = (u64)device->ecc_error[2 * counter + type];
    END
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *not, unsigned *pending, unsigned *failed)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && device->remapped[0] < 0) error = NOT_SUPPORTED;
    if (!error) {
        *corrected = (unsigned)device->remapped[0], *not = (unsigned)device->remapped[1];
        *pending = (unsigned)device->remapped[2], *failed = (unsigned)device->remapped[3];
    }
    END
}

/* Their addresses are their numbers. */
int nvmlDeviceGetRetiredPages(void *handle, unsigned cause, unsigned *count, u64 *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && cause > 1) error = INVALID_ARGUMENT;
    if (!error && device->retired[0] < 0) error = NOT_SUPPORTED;
    if (!error) {
        unsigned there = (unsigned)device->retired[cause], room = *count;
        *count = there;
        if (there > room || !to) error = there ? INSUFFICIENT_SIZE : SUCCESS;
        for (unsigned i = 0; !error && i < there; i++) to[i] = i;
    }
    END
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && device->retired[2] < 0) error = NOT_SUPPORTED;
    if (!error) *to = (unsigned)device->retired[2];
    END
}

typedef struct {
    unsigned field, scope;
    long long when, latency;
    unsigned type;
    int error;
    union { unsigned number; u64 wide; } value;
} Field;

int nvmlDeviceGetFieldValues(void *handle, int count, Field *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    for (int i = 0; !error && i < count; i++) {
        int known = to[i].field == RECOVERY_ACTION && device->recovery >= 0;
        to[i].error = known ? SUCCESS : NOT_SUPPORTED;
        to[i].type = 1; /* unsigned int */
        if (known) to[i].value.number = (unsigned)device->recovery;
    }
    END
}

/* --- Xids ------------------------------------------------------------------------------------------------------ */

typedef struct { void *device; u64 type, data; unsigned gpu_instance, compute_instance; } Event;

/* Of each gpu: who waits for its messages, and the number of the last one they had. */
typedef struct { int taken, waits[MAX_DEVICES]; u64 seen[MAX_DEVICES]; } Set;
static Set sets[MAX_SETS];

int nvmlDeviceGetSupportedEventTypes(void *handle, u64 *to)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error) *to = XID_CRITICAL;
    END
}

int nvmlEventSetCreate(void **to)
{
    BEGIN
    error = enter(__func__);
    if (!error) {
        int number = 0;
        while (number < MAX_SETS && sets[number].taken) number++;
        error = number == MAX_SETS ? INSUFFICIENT_SIZE : SUCCESS;
        if (!error) {
            memset(&sets[number], 0, sizeof sets[number]);
            sets[number].taken = 1;
            *to = &sets[number];
        }
    }
    END
}

int nvmlEventSetFree(Set *set)
{
    BEGIN
    error = enter(__func__);
    set->taken = 0;
    END
}

/* From now on: what was said before is not heard again. */
int nvmlDeviceRegisterEvents(void *handle, u64 types, Set *set)
{
    Device *device;
    BEGIN
    error = enter_gpu(__func__, handle, &device);
    if (!error && types & ~(u64)XID_CRITICAL) error = NOT_SUPPORTED;
    if (!error) {
        int gpu = (int)(device - state.device);
        set->waits[gpu] = 1;
        set->seen[gpu] = 0;
        for (int i = 0; i < device->xids; i++)
            if (device->xid[i].number > set->seen[gpu]) set->seen[gpu] = device->xid[i].number;
    }
    END
}

static int next_event(Set *set, Event *to)
{
    int lost = 0;
    for (int gpu = 0; gpu < state.devices; gpu++) {
        Device *device = &state.device[gpu];
        if (!set->waits[gpu]) continue;
        lost = lost || device->lost == GPU_IS_LOST;
        for (int i = 0; i < device->xids; i++) {
            Xid *one = &device->xid[i];
            if (one->number <= set->seen[gpu]) continue;
            set->seen[gpu] = one->number;
            *to = (Event){GPU_HANDLE(gpu), XID_CRITICAL, one->xid, (unsigned)one->gpu_instance,
                          (unsigned)one->compute_instance};
            return SUCCESS;
        }
    }
    return lost ? GPU_IS_LOST : TIMEOUT;
}

int nvmlEventSetWait_v2(Set *set, Event *to, unsigned timeout_ms)
{
    for (unsigned waited = 0;; waited += POLL_MS) {
        struct timespec nap = {0, POLL_MS * 1000000L};
        int error;
        pthread_mutex_lock(&lock);
        error = enter(__func__);
        if (!error) error = next_event(set, to);
        pthread_mutex_unlock(&lock);
        if (error != TIMEOUT || waited >= timeout_ms) return error;
        nanosleep(&nap, 0);
    }
}
