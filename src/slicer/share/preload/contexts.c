/* The CUDA contexts that the program has put work into: what is to be waited for before a turn ends. */
#include "cap.h"
#include "gate.h"

#include <errno.h>
#include <string.h>

enum { CONTEXTS = 64, EVENT_WITHOUT_TIME = 2 };

struct context {
    _Atomic(void *) handle; /* NULL: free */
    _Atomic int device;     /* its ordinal */
    _Atomic uint64_t launched;
    /* These are for one thread at a time, and go with the context. */
    _Atomic(void *) events[2];
    _Atomic uint32_t recorded; /* how often one of them was; which one by turns */
};

static struct context contexts[CONTEXTS];
static _Atomic unsigned several; /* how many there are now */
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER, syncing = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(void *) synced; /* the context that is being synchronised at this moment, and may not go */
static _Atomic uint32_t is_stopped, calls; /* no more calls of the driver; how many there are in progress */

typedef int get_context(void **), set_context(void *), no_argument(void);
typedef int create_event(void **, unsigned), record_event(void *, void *), query_event(void *);
typedef int from_green(void **, void *);

/* A function of the driver's, looked up once. ISO C has no cast from an object's pointer to a function's. */
#define DRIVER(type, name, symbol) \
    static type *name(void) \
    { \
        static _Atomic(void *) known; \
        union { void *pointer; type *function; } u = {.pointer = driver_once(&known, symbol)}; \
        return u.function; \
    }
DRIVER(get_context, current_of_driver, "cuCtxGetCurrent")
DRIVER(set_context, push_of_driver, "cuCtxPushCurrent_v2")
DRIVER(get_context, pop_of_driver, "cuCtxPopCurrent_v2")
DRIVER(no_argument, sync_of_driver, "cuCtxSynchronize")
DRIVER(create_event, event_create_of_driver, "cuEventCreate")
DRIVER(record_event, event_record_of_driver, "cuEventRecord")
DRIVER(query_event, event_query_of_driver, "cuEventQuery")
DRIVER(from_green, from_green_of_driver, "cuCtxFromGreenCtx")

bool contexts_can_be_synced(void)
{
    return current_of_driver() && push_of_driver() && pop_of_driver() && sync_of_driver();
}

/* -- noted --------------------------------------------------------------------------------------------------------- */

static struct context *find(const void *handle)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (atomic_load_explicit(&contexts[i].handle, memory_order_acquire) == handle)
            return &contexts[i];
    return NULL;
}

static struct context *add(void *handle, int device)
{
    uint64_t launched = seats_launched();
    if (job_gpu(device) < 0)
        trouble(TROUBLE_OTHER_GPU, "this program puts work on a GPU that is not its job's");
    pthread_mutex_lock(&changing);
    struct context *context = find(handle);
    bool is_new = !context;
    if (is_new && (context = find(NULL)) != NULL) {
        atomic_store(&context->device, device);
        atomic_store(&context->events[0], NULL);
        atomic_store(&context->events[1], NULL);
        atomic_store(&context->recorded, 0);
        atomic_store(&context->launched, launched); /* as if it had kept up: only what it lacks from now on counts */
        atomic_store_explicit(&context->handle, handle, memory_order_release);
        if (atomic_fetch_add(&several, 1) == 1) /* the first one did not count while it was alone */
            for (int i = 0; i < CONTEXTS; i++)
                if (&contexts[i] != context && atomic_load(&contexts[i].handle))
                    atomic_store(&contexts[i].launched, launched);
    }
    pthread_mutex_unlock(&changing);
    if (!context)
        trouble(TROUBLE_UNDRAINED, "this program uses more CUDA contexts than can be waited for at the end of a turn");
    return context;
}

void *context_of_thread(void)
{
    void *handle = NULL;
    get_context *current = current_of_driver();
    return current && current(&handle) == CUDA_SUCCESS ? handle : NULL;
}

struct context *context_note(void)
{
    void *handle = context_of_thread();
    struct context *context = handle ? find(handle) : NULL;
    return context || !handle ? context : add(handle, ordinal_current());
}

void context_launched(struct context *context)
{
    if (context && atomic_load_explicit(&several, memory_order_relaxed) > 1)
        atomic_fetch_add_explicit(&context->launched, 1, memory_order_relaxed);
}

bool context_counts(const struct context *context, uint64_t *here, uint64_t *most)
{
    *here = *most = seats_launched();
    if (atomic_load(&several) < 2)
        return false;
    *most = 0;
    for (int i = 0; i < CONTEXTS; i++)
        if (atomic_load(&contexts[i].handle) && atomic_load(&contexts[i].launched) > *most)
            *most = atomic_load(&contexts[i].launched);
    *here = context ? atomic_load(&context->launched) : *most;
    return true;
}

/* -- synchronised -------------------------------------------------------------------------------------------------- */

/* Between these, the driver is called. False: the program is at its end. */
static bool begin_calls(void)
{
    atomic_fetch_add(&calls, 1);
    if (!atomic_load(&is_stopped))
        return true;
    atomic_fetch_sub(&calls, 1);
    return false;
}

static void end_calls(void)
{
    atomic_fetch_sub(&calls, 1);
}

void contexts_stop(void)
{
    atomic_store(&is_stopped, 1);
    for (uint64_t start = now_ns(); atomic_load(&calls) && now_ns() - start < NS_A_SECOND;)
        sleep_ns(100 * NS_A_US);
}

/* Any error counts as done: a context that is broken does no more work. */
static void sync_one(void *handle)
{
    void *popped;
    if (push_of_driver()(handle) != CUDA_SUCCESS)
        return;
    sync_of_driver()();
    pop_of_driver()(&popped);
}

/* The context's handle, kept from going until `synced` is NULL again; NULL: there is none in this row. */
static void *hold(struct context *context)
{
    pthread_mutex_lock(&changing);
    void *handle = atomic_load(&context->handle);
    atomic_store(&synced, handle);
    pthread_mutex_unlock(&changing);
    return handle;
}

bool contexts_sync(void)
{
    if (!begin_calls())
        return false;
    if (!capture_hold()) {
        end_calls();
        return false;
    }
    pthread_mutex_lock(&syncing);
    for (int i = 0; i < CONTEXTS; i++) {
        void *handle = hold(&contexts[i]);
        if (handle)
            sync_one(handle);
        atomic_store(&synced, NULL);
    }
    pthread_mutex_unlock(&syncing);
    capture_release();
    end_calls();
    return true;
}

/* By asking again and again, because what is in the stream may itself wait for the calling thread. */
static void wait_for(void *event, uint64_t about_ns, uint64_t most_ns)
{
    uint64_t start = now_ns();
    while (event_query_of_driver()(event) == CUDA_ERROR_NOT_READY && now_ns() - start < most_ns)
        sleep_ns(about_ns / 20);
}

bool context_pace(struct context *context, uintptr_t stream, uint64_t about_ns, uint64_t most_ns)
{
    if (!event_create_of_driver() || !event_record_of_driver() || !event_query_of_driver() || !begin_calls())
        return false;
    bool may = capture_hold(), is_paced = false;
    uint32_t number = atomic_load(&context->recorded);
    void *last = number ? atomic_load(&context->events[(number - 1) % 2]) : NULL;
    void *next = atomic_load(&context->events[number % 2]);
    if (may && last)
        wait_for(last, about_ns, most_ns);
    if (may && !next && event_create_of_driver()(&next, EVENT_WITHOUT_TIME) == CUDA_SUCCESS)
        atomic_store(&context->events[number % 2], next);
    if (may && next && event_record_of_driver()(next, (void *)stream) == CUDA_SUCCESS) {
        atomic_store(&context->recorded, number + 1);
        is_paced = true;
    }
    if (may)
        capture_release();
    end_calls();
    return is_paced;
}

/* -- gone ---------------------------------------------------------------------------------------------------------- */

static void forget(struct context *context)
{
    uint64_t start = now_ns();
    pthread_mutex_lock(&changing);
    void *handle = atomic_exchange(&context->handle, NULL);
    if (handle)
        atomic_fetch_sub(&several, 1);
    pthread_mutex_unlock(&changing);
    while (handle && atomic_load(&synced) == handle && now_ns() - start < settings()->drain_us * UINT64_C(1000))
        sleep_ns(50 * NS_A_US);
}

/* Destroying waits for the context's work itself, or ends it. If it fails, the next work notes the context again. */
static long destroy(void *real, long *a, const void *handle)
{
    int before = errno;
    struct context *context = handle ? find(handle) : NULL;
    if (context)
        forget(context);
    errno = before;
    long result = call(real, a);
    if (handle && (int)result == CUDA_SUCCESS)
        capture_forget(handle);
    return result;
}

long on_context_gone(void *real, long *a)
{
    long result = destroy(real, a, (const void *)a[0]);
    if ((int)result == CUDA_SUCCESS)
        memory_context_gone((uint64_t)a[0]);
    return result;
}

long on_green_context_gone(void *real, long *a)
{
    void *handle = NULL;
    if (!from_green_of_driver() || from_green_of_driver()(&handle, (void *)a[0]) != CUDA_SUCCESS)
        handle = NULL;
    return destroy(real, a, handle);
}

/* cuDevicePrimaryCtxRelease, …Reset. A release is the end only where it is the last one of several. */
long on_primary_context_gone(void *real, long *a)
{
    int before = errno, device = (int)a[0];
    void *gone[CONTEXTS] = {NULL};
    uint64_t primary = memory_primary_context(device);
    for (int i = 0; i < CONTEXTS; i++)
        if (atomic_load(&contexts[i].handle) && atomic_load(&contexts[i].device) == device) {
            gone[i] = atomic_load(&contexts[i].handle);
            forget(&contexts[i]);
        }
    errno = before;
    long result = call(real, a);
    before = errno;
    bool is_active = memory_primary_is_active(device);
    for (int i = 0; i < CONTEXTS; i++)
        if (gone[i] && is_active)
            add(gone[i], device);
        else if (gone[i])
            capture_forget(gone[i]);
    memory_primary_context_gone(device, primary);
    errno = before;
    return result;
}

void contexts_after_fork(void)
{
    mutex_after_fork(&changing);
    mutex_after_fork(&syncing);
    memset(contexts, 0, sizeof contexts);
    atomic_store(&several, 0);
    atomic_store(&calls, 0);
    atomic_store(&is_stopped, 0);
    atomic_store(&synced, NULL);
}
