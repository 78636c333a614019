/* The gate: where the program's work waits for its job's turn. */
#include "gate.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { NO_STREAM = -1, IN_CONFIG = -2, CONFIG_STREAM = 32, MOST_IN_WINDOW = 512, MOST_WINDOWS = 8 };

static __thread struct self self __attribute__((tls_model("initial-exec")));
static _Atomic uint32_t syncing;
static pthread_mutex_t in_window = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t synced_ns, synced_launched, closed_ns;
static enum { UNKNOWN, ON, OFF } _Atomic gate;
/* What each call needs, known from when the gate is on. */
static _Atomic(struct job_file *) counted_in;
static _Atomic uint32_t gives_back; /* the mode is one that gives the turn back by itself */

struct self *gate_self(void)
{
    return &self;
}

bool gate_is_on(void)
{
    return atomic_load_explicit(&gate, memory_order_acquire) == ON;
}

/* -- open and closed ----------------------------------------------------------------------------------------------- */

unsigned gate_syncing(void) { return atomic_load(&syncing); }

uint64_t gate_synced_ns(uint64_t *launched)
{
    *launched = atomic_load(&synced_launched);
    return atomic_load(&synced_ns);
}

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

/* -- at the start, at a fork, at the end --------------------------------------------------------------------------- */

void gate_after_fork(void)
{
    mutex_after_fork(&in_window);
    seats_after_fork();
    memset(&self, 0, sizeof self);
    atomic_store(&closed_ns, 0);
    atomic_store(&syncing, 0);
    atomic_store(&gate, UNKNOWN);
    atomic_store(&counted_in, NULL);
    arena_after_fork();
    turn_after_fork();
    contexts_after_fork();
    capture_after_fork();
    helper_after_fork();
}

static void prepare(void)
{
    seats_prepare();
    atexit(contexts_stop); /* after CUDA's own, which it registered before: so it runs before that */
}

/* At the program's end. The turn is not given back: work may be in flight until the process is gone. */
__attribute__((destructor)) static void count_at_end(void)
{
    if (gate_is_on())
        turn_count();
}

static bool start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int before = errno, cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_once(&once, prepare);
    enum attached is = arena_attach();
    if (is == ATTACHED) {
        atomic_store(&counted_in, job());
        atomic_store(&gives_back, settings()->mode != MODE_YIELD);
    }
    if (is != NOT_YET)
        atomic_store(&gate, is == ATTACHED ? ON : OFF);
    pthread_setcancelstate(cancel, NULL);
    errno = before;
    return is == ATTACHED;
}

static inline bool is_watched(const struct self *me)
{
    int known = atomic_load_explicit(&gate, memory_order_acquire);
    return !me->depth && known != OFF && (known == ON || start());
}

/* -- work ---------------------------------------------------------------------------------------------------------- */

static uintptr_t stream_of(const long *a, int place)
{
    uintptr_t stream = 0;
    if (place >= 0)
        stream = (uintptr_t)a[place];
    else if (place == IN_CONFIG && a[0])
        memcpy(&stream, (const char *)a[0] + CONFIG_STREAM, sizeof stream);
    return stream;
}

/* Each one at once, so that a process that is killed has counted all. */
static inline void count_work(bool is_in)
{
    struct job_file *file = atomic_load_explicit(&counted_in, memory_order_relaxed);
    if (!file)
        return;
    atomic_fetch_add_explicit(&file->counters.gated, 1, memory_order_relaxed);
    if (!is_in)
        atomic_fetch_add_explicit(&file->counters.passed, 1, memory_order_relaxed);
}

/* Keep about a window of work in flight, in two halves: after every half, wait for the one before it. How many launches
 * a half has is learnt from how long the last one took. */
static void keep_window(struct context *context, uintptr_t stream)
{
    static _Atomic uint32_t started, learnt[2] = {1, 1}; /* grow */
    static uint64_t last_ns; /* guarded by in_window */
    bool is_long = atomic_load_explicit(&arena_job()->window, memory_order_relaxed) == WINDOW_LONG;
    _Atomic uint32_t *every = &learnt[is_long];
    if (atomic_fetch_add(&started, 1) + 1 < atomic_load(every) || pthread_mutex_trylock(&in_window) != 0)
        return;
    uint64_t window = (uint64_t)settings()->window_us * NS_A_US;
    uint64_t eighth = (uint64_t)settings()->quantum_us * NS_A_US / 8;
    window = is_long && window < eighth ? eighth : window;
    if (context_pace(context, stream, window / 2, window * MOST_WINDOWS)) {
        uint64_t now = now_ns(), took = now - last_ns + 1, half = atomic_load(every), fits = half * (window / 2) / took;
        half = fits < half * 2 ? fits : half * 2;
        half = half < MOST_IN_WINDOW / 2 ? half : MOST_IN_WINDOW / 2;
        atomic_store(every, half > 1 ? (uint32_t)half : 1);
        atomic_store(&started, 0);
        last_ns = now;
    }
    pthread_mutex_unlock(&in_window);
}

/* A moment at which the modes that give the turn back by themselves do so. */
static void release_point(void)
{
    static _Atomic uint32_t skipped;
    if (atomic_load(&skipped) < settings()->skip_syncs) {
        atomic_fetch_add(&skipped, 1);
        contexts_sync();
    } else
        turn_leave();
}

static void after_work(struct context *context, const long *a, int place)
{
    static _Atomic uint32_t started;
    const struct settings *asked = settings();
    if (asked->mode == MODE_YIELD) {
        if (turn_is_windowed() && context && place != NO_STREAM)
            keep_window(context, stream_of(a, place));
    } else if (asked->mode == MODE_EACH)
        release_point();
    else if (asked->mode == MODE_TIME) {
        if (now_ns() - turn_joined_ns() >= (uint64_t)asked->hold_us * NS_A_US)
            release_point();
    } else if (atomic_fetch_add(&started, 1) + 1 >= asked->launches) {
        atomic_store(&started, 0);
        release_point();
    }
}

/* In: counted in the seat, with a part in the turn. */
static inline bool enter(struct self *me, struct context *context)
{
    atomic_fetch_add(&me->seat->busy, 1); /* before the look at the turn: who ends it looks at this after */
    if (turn_is_ours())
        return true;
    atomic_fetch_sub(&me->seat->busy, 1);
    return turn_wait(&me->seat->busy, context);
}

static inline long work(void *real, long *a, int place)
{
    struct self *me = &self;
    if (!is_watched(me))
        return call(real, a);
    if (!me->seat)
        seat_take();
    me->depth = 1;
    struct seat *seat = me->seat;
    bool is_captured = capture_is_open() && place != NO_STREAM && capture_is_on(stream_of(a, place));
    struct context *context = is_captured ? NULL : context_note();
    bool is_in = !is_captured && enter(me, context);
    atomic_fetch_add_explicit(&seat->launched, 1, memory_order_relaxed);
    if (is_in)
        context_launched(context);
    long result = call(real, a);
    if ((int)result == CUDA_SUCCESS)
        count_work(is_in);
    if (is_in) {
        atomic_fetch_sub_explicit(&seat->busy, 1, memory_order_release);
        if (atomic_load_explicit(&gives_back, memory_order_relaxed) || turn_is_windowed())
            after_work(context, a, place);
    }
    me->depth = 0;
    return result;
}

long on_work(void *real, long *a) { return work(real, a, NO_STREAM); }
long on_work_1(void *real, long *a) { return work(real, a, 1); }
long on_work_3(void *real, long *a) { return work(real, a, 3); }
long on_work_4(void *real, long *a) { return work(real, a, 4); }
long on_work_5(void *real, long *a) { return work(real, a, 5); }
long on_work_8(void *real, long *a) { return work(real, a, 8); }
long on_work_config(void *real, long *a) { return work(real, a, IN_CONFIG); }

long on_sync(void *real, long *a)
{
    struct self *me = &self;
    if (me->depth || !gate_is_on())
        return call(real, a);
    me->depth = 1;
    atomic_fetch_add(&syncing, 1);
    long result = call(real, a);
    if (atomic_load_explicit(&arena_job()->waited, memory_order_relaxed)) {
        atomic_store(&synced_launched, seats_launched());
        atomic_store(&synced_ns, now_ns());
    }
    atomic_fetch_sub(&syncing, 1);
    if (atomic_load_explicit(&gives_back, memory_order_relaxed) && atomic_load(&arena_process()->joined))
        release_point();
    else if (atomic_load_explicit(&arena_job()->waited, memory_order_relaxed))
        helper_ring();
    me->depth = 0;
    return result;
}
