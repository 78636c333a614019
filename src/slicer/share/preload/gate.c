/* The gate: where the program's work waits for its job's turn. */
#include "cap.h"
#include "gate.h"

#include <string.h>

#define ENDED (UINT64_C(1) << 32)
enum { NO_STREAM = -1, IN_CONFIG = -2, CONFIG_STREAM = 32, PER_THREAD_STREAM = 2, MOST_IN_WINDOW = 512, MOST_WINDOWS = 8 };
enum { LARGE_COPY = 1 << 20, MEMORY_TYPE = 2 /* CUpointer_attribute */ };

static _Atomic uint32_t syncing;
static pthread_mutex_t in_window = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t closed_ns;
static _Atomic uint64_t calls; /* calls that start work; lower half: those in progress, upper half: those that ended */
static enum { UNKNOWN, ON, OFF } _Atomic gate;
/* Known once the gate is on, for use by each call. */
static _Atomic(struct job_file *) counted_in;
static _Atomic uint32_t gives_back; /* in this mode the turn is given back without a request */

static bool gate_is_on(void)
{
    return atomic_load_explicit(&gate, memory_order_acquire) == ON;
}

unsigned gate_syncing(void) { return atomic_load(&syncing); }

void gate_enter(void) { atomic_fetch_add(&calls, 1); }
uint32_t gate_started(void) { return (uint32_t)(atomic_load(&calls) >> 32); }
bool gate_is_empty(void) { return (uint32_t)atomic_load(&calls) == 0; }

void gate_close(void)
{
    atomic_store(&closed_ns, now_ns());
}

bool gate_is_closed(void)
{
    uint64_t since = atomic_load(&closed_ns);
    return since && now_ns() - since <= settings()->drain_us * UINT64_C(1000);
}

void gate_open(void)
{
    atomic_store(&closed_ns, 0);
    atomic_fetch_add(&arena_process()->call, 1);
    futex_wake(&arena_process()->call);
}

/* At the program's end. The turn is not given back, because work may be in flight until the process is gone. */
__attribute__((destructor)) static void count_at_end(void)
{
    if (gate_is_on() && !atomic_load(&share_is_off))
        turn_tell();
}

static bool start(void)
{
    enum attached is = arena_attach();
    if (is == ATTACHED) {
        atomic_store(&counted_in, job());
        atomic_store(&gives_back, mode_gives_back());
    }
    if (is != NOT_YET)
        atomic_store(&gate, is == ATTACHED ? ON : OFF);
    return is == ATTACHED;
}

static inline bool is_watched(void)
{
    int known = atomic_load_explicit(&gate, memory_order_acquire);
    return known != OFF && (known == ON || start());
}

static uintptr_t stream_of(const long *a, int place)
{
    uintptr_t stream = 0;
    if (place >= 0)
        stream = (uintptr_t)a[place];
    else if (place == IN_CONFIG && a[0])
        memcpy(&stream, (const char *)a[0] + CONFIG_STREAM, sizeof stream);
    return stream || !share_hook->is_per_thread ? stream : PER_THREAD_STREAM;
}

/* Written at once, so that a killed process has counted everything. */
static inline void count_work(bool is_in)
{
    struct job_file *file = atomic_load_explicit(&counted_in, memory_order_relaxed);
    if (!file)
        return;
    atomic_fetch_add_explicit(&file->counters.gated, 1, memory_order_relaxed);
    if (!is_in)
        atomic_fetch_add_explicit(&file->counters.passed, 1, memory_order_relaxed);
}

/* Keep about a window of work in flight, in two halves: after each half, wait for the one before it. The number of
 * launches in a half follows from how long the last half took. */
static void keep_window(struct context *context, uintptr_t stream)
{
    static _Atomic uint32_t started, every = 1; /* grows */
    static uint64_t last_ns; /* guarded by in_window */
    if (atomic_fetch_add(&started, 1) + 1 < atomic_load(&every) || pthread_mutex_trylock(&in_window) != 0)
        return;
    uint64_t window = (uint64_t)settings()->window_us * NS_A_US;
    if (context_pace(context, stream, window / 2, window * MOST_WINDOWS)) {
        uint64_t now = now_ns(), took = now - last_ns + 1, half = atomic_load(&every), fits = half * (window / 2) / took;
        half = fits < half * 2 ? fits : half * 2;
        half = half < MOST_IN_WINDOW / 2 ? half : MOST_IN_WINDOW / 2;
        atomic_store(&every, half > 1 ? (uint32_t)half : 1);
        atomic_store(&started, 0);
        last_ns = now;
    }
    pthread_mutex_unlock(&in_window);
}

static bool enter(const struct context *context)
{
    gate_enter(); /* before the check of the turn: whoever ends it checks this count afterwards */
    if (turn_is_ours())
        return true;
    atomic_fetch_sub(&calls, 1);
    return turn_wait(context);
}

static inline long work(void *real, long *a, int place)
{
    if (!is_watched())
        return call(real, a);
    bool is_captured = capture_is_open() && place != NO_STREAM && capture_is_on(stream_of(a, place));
    struct context *context = is_captured ? NULL : context_note();
    bool is_in = !is_captured && enter(context);
    long result = call(real, a);
    if ((int)result == CUDA_SUCCESS)
        count_work(is_in);
    atomic_fetch_add_explicit(&calls, ENDED - is_in, memory_order_release);
    if (is_in && atomic_load_explicit(&gives_back, memory_order_relaxed))
        mode_after_work();
    else if (is_in && turn_is_windowed() && context && place != NO_STREAM)
        keep_window(context, stream_of(a, place));
    return result;
}

long on_work(void *real, long *a) { return work(real, a, NO_STREAM); }
long on_work_1(void *real, long *a) { return work(real, a, 1); }
long on_work_3(void *real, long *a) { return work(real, a, 3); }
long on_work_4(void *real, long *a) { return work(real, a, 4); }
long on_work_5(void *real, long *a) { return work(real, a, 5); }
long on_work_8(void *real, long *a) { return work(real, a, 8); }
long on_work_config(void *real, long *a) { return work(real, a, IN_CONFIG); }

/* The driver copies a MiB or more from or to pageable memory of the host through small buffers of its own, and the GPU
 * computes on meanwhile. Such a copy passes, because it would hold the turn while the GPU idles. */
static long copy(void *real, long *a, int place, long host)
{
    static _Atomic(void *) known;
    unsigned type = 0;
    void *ask = a[2] >= LARGE_COPY && is_watched() ? driver_once(&known, "cuPointerGetAttribute") : NULL;
    if (!ask || (int)call(ask, (long[ARGUMENTS]){(long)&type, MEMORY_TYPE, host}) == CUDA_SUCCESS)
        return work(real, a, place);
    count_work(false);
    return call(real, a);
}

long on_copy_in(void *real, long *a) { return copy(real, a, NO_STREAM, a[1]); }
long on_copy_in_async(void *real, long *a) { return copy(real, a, 3, a[1]); }
long on_copy_out(void *real, long *a) { return copy(real, a, NO_STREAM, a[0]); }
long on_copy_out_async(void *real, long *a) { return copy(real, a, 3, a[0]); }

long on_sync(void *real, long *a)
{
    if (!gate_is_on()) {
        long result = call(real, a);
        pools_synced();
        return result;
    }
    atomic_fetch_add(&syncing, 1);
    long result = call(real, a);
    pools_synced();
    atomic_fetch_sub(&syncing, 1);
    if (atomic_load_explicit(&gives_back, memory_order_relaxed) && atomic_load(&arena_process()->joined))
        mode_at_sync();
    else if (atomic_load_explicit(&arena_job()->waited, memory_order_relaxed))
        helper_ring();
    return result;
}
