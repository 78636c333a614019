/* Captures: while a program records a graph, nothing may be synchronised in its process, because that would break the
 * capture. And recorded calls are not work yet. A context that is being destroyed must not be synchronised, either. */
#include "gate.h"

enum { PER_THREAD_STREAM = 2, WRONG_THREAD = 908 };

static _Atomic uint32_t open; /* captures, including those that are about to begin */
static _Atomic uint32_t holds; /* current synchronisations */

bool capture_is_open(void)
{
    return atomic_load(&open) != 0;
}

bool capture_is_on(uintptr_t stream)
{
    static _Atomic(void *) known;
    int status = 0;
    void *real = driver_once(&known, "cuStreamIsCapturing");
    /* The legacy default stream cannot be captured, and shares its handle 0 with the per-thread one. */
    long a[ARGUMENTS] = {(long)(stream ? stream : PER_THREAD_STREAM), (long)&status};
    return real && (int)call(real, a) == CUDA_SUCCESS && status;
}

/* Each side announces itself before it checks for the other. So at least one of them sees the other. */
bool capture_hold(void)
{
    atomic_fetch_add(&holds, 1);
    if (!atomic_load(&open))
        return true;
    atomic_fetch_sub(&holds, 1);
    return false;
}

void capture_release(void)
{
    if (atomic_fetch_sub(&holds, 1) == 1)
        futex_wake(&holds);
}

/* The work may itself wait for this thread, so this wait is limited. */
void capture_begin(void)
{
    uint64_t start = now_ns(), limit = settings()->drain_us * UINT64_C(1000);
    uint32_t seen;
    if (atomic_load(&share_is_off))
        return;
    atomic_fetch_add(&open, 1);
    while ((seen = atomic_load(&holds)) != 0 && now_ns() - start < limit)
        futex_wait(&holds, seen, NS_A_MS);
}

void capture_end(void)
{
    atomic_fetch_sub(&open, 1);
}

long on_capture_begin(void *real, long *a)
{
    capture_begin();
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS)
        capture_end();
    return result;
}

long on_capture_end(void *real, long *a)
{
    bool was_open = capture_is_on((uintptr_t)a[0]);
    long result = call(real, a);
    if (was_open && (int)result != WRONG_THREAD) /* any other error has ended the capture, too */
        capture_end();
    return result;
}

/* A capture ends with its stream. */
long on_stream_gone(void *real, long *a)
{
    bool was_open = capture_is_open() && a[0] && capture_is_on((uintptr_t)a[0]);
    long result = call(real, a);
    if (was_open && (int)result == CUDA_SUCCESS)
        capture_end();
    return result;
}
