/* The CUDA contexts into which the program has put work: they have to be waited for before a turn ends. */
#include "cap.h"
#include "gate.h"

#include <string.h>

enum { CONTEXTS = 64, EVENT_WITHOUT_TIME = 2 };

struct context {
    _Atomic(void *) handle; /* NULL: free */
    /* Only one thread at a time uses these; they end with the context. */
    _Atomic(void *) events[2];
    _Atomic uint32_t recorded; /* how often one of them was recorded; they alternate */
};

static struct context contexts[CONTEXTS];
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER, syncing = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(void *) synced; /* the context that is being synchronised now */
static _Atomic uint64_t synced_since_ns;

/* Calls a driver function, looked up once. */
static int ask(_Atomic(void *) *known, const char *symbol, long first, long second)
{
    return (int)call(driver_once(known, symbol), (long[ARGUMENTS]){first, second});
}

static _Atomic(void *) current, push, pop, sync_all, event_create, event_record, event_query;

bool contexts_can_be_synced(void)
{
    return driver_once(&current, "cuCtxGetCurrent") && driver_once(&push, "cuCtxPushCurrent_v2") &&
           driver_once(&pop, "cuCtxPopCurrent_v2") && driver_once(&sync_all, "cuCtxSynchronize");
}

static struct context *find(const void *handle)
{
    for (int i = 0; i < CONTEXTS; i++)
        if (atomic_load_explicit(&contexts[i].handle, memory_order_acquire) == handle)
            return &contexts[i];
    return NULL;
}

static struct context *add(void *handle, int device)
{
    if (job_gpu(device) < 0)
        trouble(TROUBLE_OTHER_GPU, "this program puts work on a GPU that is not its job's");
    pthread_mutex_lock(&changing);
    struct context *context = find(handle);
    if (!context && (context = find(NULL)) != NULL) {
        atomic_store(&context->events[0], NULL);
        atomic_store(&context->events[1], NULL);
        atomic_store(&context->recorded, 0);
        atomic_store_explicit(&context->handle, handle, memory_order_release);
    }
    pthread_mutex_unlock(&changing);
    if (!context)
        trouble(TROUBLE_UNDRAINED, "this program has more CUDA contexts than slicer can wait for at the end of a turn");
    return context;
}

void *context_of_thread(void)
{
    void *handle = NULL;
    bool is_known = driver_once(&current, "cuCtxGetCurrent") != NULL;
    return is_known && ask(&current, "cuCtxGetCurrent", (long)&handle, 0) == CUDA_SUCCESS ? handle : NULL;
}

struct context *context_note(void)
{
    void *handle = context_of_thread();
    struct context *context = handle ? find(handle) : NULL;
    return context || !handle ? context : add(handle, ordinal_current());
}

bool contexts_wait_elsewhere(const struct context *context, uint64_t ns)
{
    const void *handle = atomic_load(&synced);
    uint64_t since = atomic_load(&synced_since_ns), now = now_ns();
    return context && handle && handle != atomic_load(&context->handle) && now > since && now - since > ns;
}

/* Any error counts as done, because a broken context does no more work. */
static void sync_one(void *handle)
{
    void *popped;
    atomic_store(&synced_since_ns, now_ns());
    atomic_store(&synced, handle);
    if (ask(&push, "cuCtxPushCurrent_v2", (long)handle, 0) == CUDA_SUCCESS) {
        ask(&sync_all, "cuCtxSynchronize", 0, 0);
        ask(&pop, "cuCtxPopCurrent_v2", (long)&popped, 0);
    }
    atomic_store(&synced, NULL);
}

bool contexts_sync(void)
{
    if (!capture_hold())
        return false;
    pthread_mutex_lock(&syncing);
    for (int i = 0; i < CONTEXTS; i++) {
        void *handle = atomic_load(&contexts[i].handle);
        if (handle)
            sync_one(handle);
    }
    pthread_mutex_unlock(&syncing);
    capture_release();
    return true;
}

/* Polls, because the work in the stream may itself wait for the calling thread. */
static void wait_for(void *event, uint64_t about_ns, uint64_t most_ns)
{
    uint64_t start = now_ns();
    while (ask(&event_query, "cuEventQuery", (long)event, 0) == CUDA_ERROR_NOT_READY && now_ns() - start < most_ns)
        sleep_ns(about_ns / 20);
}

bool context_pace(struct context *context, uintptr_t stream, uint64_t about_ns, uint64_t most_ns)
{
    if (!driver_once(&event_create, "cuEventCreate") || !driver_once(&event_record, "cuEventRecord") ||
        !driver_once(&event_query, "cuEventQuery") || !capture_hold())
        return false;
    bool is_paced = false;
    uint32_t number = atomic_load(&context->recorded);
    void *last = number ? atomic_load(&context->events[(number - 1) % 2]) : NULL;
    void *next = atomic_load(&context->events[number % 2]);
    if (last)
        wait_for(last, about_ns, most_ns);
    if (!next && ask(&event_create, "cuEventCreate", (long)&next, EVENT_WITHOUT_TIME) == CUDA_SUCCESS)
        atomic_store(&context->events[number % 2], next);
    if (next && ask(&event_record, "cuEventRecord", (long)next, (long)stream) == CUDA_SUCCESS) {
        atomic_store(&context->recorded, number + 1);
        is_paced = true;
    }
    capture_release();
    return is_paced;
}

/* Destroying a context waits for its work, or ends it. Nothing is synchronised meanwhile. */
static long destroy(void *real, long *a, const void *handle)
{
    capture_begin();
    long result = call(real, a);
    struct context *context = handle && (int)result == CUDA_SUCCESS ? find(handle) : NULL;
    if (context)
        atomic_store(&context->handle, NULL);
    capture_end();
    return result;
}

long on_context_gone(void *real, long *a)
{
    long result = destroy(real, a, (const void *)a[0]);
    if ((int)result == CUDA_SUCCESS)
        memory_gone((uint64_t)a[0]);
    return result;
}

long on_green_context_gone(void *real, long *a)
{
    void *handle = NULL;
    void *of_green = driver("cuCtxFromGreenCtx");
    if (!of_green || (int)call(of_green, (long[ARGUMENTS]){(long)&handle, a[0]}) != CUDA_SUCCESS)
        handle = NULL;
    return destroy(real, a, handle);
}

static bool primary_is_active(long device)
{
    unsigned flags;
    int active = 0;
    void *ask = driver("cuDevicePrimaryCtxGetState");
    return ask && (int)call(ask, (long[ARGUMENTS]){device, (long)&flags, (long)&active}) == CUDA_SUCCESS && active;
}

/* A device's primary context; NULL: it does not exist. Only retaining it yields its handle. */
static void *primary_of(long device)
{
    void *handle = NULL, *retain = driver("cuDevicePrimaryCtxRetain"), *release = driver("cuDevicePrimaryCtxRelease_v2");
    if (!retain || !release || !primary_is_active(device) ||
        (int)call(retain, (long[ARGUMENTS]){(long)&handle, device}) != CUDA_SUCCESS)
        return NULL;
    call(release, (long[ARGUMENTS]){device});
    return handle;
}

/* cuDevicePrimaryCtxRelease, …Reset. A release ends the context only if it is the last one; otherwise the next work
 * notes the context again. */
long on_primary_context_gone(void *real, long *a)
{
    void *handle = primary_of(a[0]);
    long result = destroy(real, a, handle);
    if (handle && !primary_is_active(a[0])) {
        memory_gone((uintptr_t)handle);
        pools_gone(job_gpu((int)a[0]));
    }
    return result;
}
