/* Stream-ordered memory: cuMemAllocAsync, cuMemAllocFromPoolAsync, and their pools.
 *
 * A pool keeps freed memory until the next sync, and then up to its release threshold. On the card this memory is in
 * use. So a pool is charged the amount that the driver says it has reserved: before an allocation the expected increase,
 * after it the actual amount, and again after each sync. Single allocations are not remembered. */
#include "cap.h"

#include <pthread.h>
#include <string.h>

enum {
    POOLS = 64,
    RESERVED = 5, USED = 7, /* CUmemPool_attribute: …_MEM_CURRENT */
    STREAM_LEGACY = 1, STREAM_PER_THREAD = 2
};

struct pool {
    uint64_t handle; /* 0: there is none */
    uint64_t charged;
    int gpu;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct pool pools[POOLS];
static _Atomic bool is_loose; /* a pool may have reserved more than it uses */

static uint64_t attribute(const struct pool *pool, long name)
{
    static _Atomic(void *) known;
    uint64_t value = 0;
    void *real = driver_once(&known, "cuMemPoolGetAttribute");
    if (real != NULL)
        call(real, (long[ARGUMENTS]){(long)pool->handle, name, (long)&value});
    return value;
}

/* False: it has reserved more than the cap leaves. If `certain`, that is charged all the same. */
static bool settle(struct pool *pool, bool certain)
{
    uint64_t limit, reserved = job_limit(pool->gpu, &limit) ? attribute(pool, RESERVED) : 0;
    if (reserved > pool->charged) {
        bool fits = quota_charge(pool->gpu, reserved - pool->charged) == CHARGED;
        if (!fits && certain)
            quota_overdraw(pool->gpu, reserved - pool->charged);
        if (!fits && !certain)
            return false;
    } else
        quota_credit(pool->gpu, pool->charged - reserved);
    pool->charged = reserved;
    return true;
}

/* Release the pools' unused memory, as the driver does on a full card. True: there was some. */
static bool trim(int gpu)
{
    void *real = driver("cuMemPoolTrimTo");
    bool is_less = false;
    for (struct pool *pool = pools; pool < pools + POOLS; pool++) {
        uint64_t before = pool->charged;
        if (pool->gpu != gpu || before == 0 || real == NULL)
            continue;
        call(real, (long[ARGUMENTS]){(long)pool->handle, 0});
        settle(pool, true);
        is_less = is_less || pool->charged < before;
    }
    return is_less;
}

/* The pool, or a new one if it is unknown; NULL: there are too many. */
static struct pool *find(uint64_t handle, int gpu)
{
    struct pool *unused = NULL;
    for (struct pool *pool = pools; pool < pools + POOLS; pool++) {
        if (pool->handle == handle)
            return pool;
        if (pool->handle == 0)
            unused = pool;
    }
    if (unused != NULL)
        *unused = (struct pool){.handle = handle, .gpu = gpu};
    return unused;
}

/* Charge what the pool has to reserve for the allocation. */
static enum verdict grow(struct pool *pool, uint64_t bytes)
{
    uint64_t used = attribute(pool, USED), kept = pool->charged > used ? pool->charged - used : 0;
    uint64_t more = bytes > kept ? bytes - kept : 0;
    enum verdict verdict = more == 0 ? CHARGED : quota_charge(pool->gpu, more);
    if (verdict == REFUSED && trim(pool->gpu))
        return grow(pool, bytes); /* try again: the pools have less each time */
    if (verdict == CHARGED)
        pool->charged += more;
    return verdict;
}

bool pools_trim(int gpu)
{
    pthread_mutex_lock(&guard);
    bool is_less = trim(gpu);
    pthread_mutex_unlock(&guard);
    return is_less;
}

void pools_synced(void)
{
    if (!atomic_load_explicit(&is_loose, memory_order_relaxed))
        return;
    pthread_mutex_lock(&guard);
    bool is_still = false;
    for (struct pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool->charged != 0) {
            settle(pool, true);
            is_still = is_still || pool->charged != 0;
        }
    atomic_store(&is_loose, is_still);
    pthread_mutex_unlock(&guard);
}

void pools_gone(int gpu)
{
    pthread_mutex_lock(&guard);
    for (struct pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool->gpu == gpu) {
            quota_credit(gpu, pool->charged);
            *pool = (struct pool){.handle = 0};
        }
    pthread_mutex_unlock(&guard);
}

/* If the driver reserves more for it than fits, it goes back into the pool. */
static long alloc_charged(void *real, long *a, struct pool *pool, long stream)
{
    fault("memory-charged");
    long result = call(real, a);
    atomic_store(&is_loose, true);
    if ((int)result != CUDA_SUCCESS || settle(pool, false) || (trim(pool->gpu) && settle(pool, false))) {
        if ((int)result != CUDA_SUCCESS)
            settle(pool, true);
        else
            quota_count(ALLOCATIONS);
        return result;
    }
    uint64_t address;
    memcpy(&address, (void *)a[0], sizeof address);
    void *free_async = driver("cuMemFreeAsync");
    if (free_async != NULL)
        call(free_async, (long[ARGUMENTS]){(long)address, stream});
    settle(pool, true);
    quota_count(REFUSALS);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static long alloc(void *real, long *a, uint64_t handle, int gpu, long stream)
{
    uint64_t limit;
    if (gpu < 0)
        return elsewhere_call(real, a);
    if (!job_limit(gpu, &limit) || a[1] == 0)
        return call(real, a);
    pthread_mutex_lock(&guard);
    struct pool *pool = find(handle, gpu);
    enum verdict verdict = pool == NULL ? NOT_COUNTED : grow(pool, (uint64_t)a[1]);
    long result = verdict == CHARGED ? alloc_charged(real, a, pool, stream) : CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&guard);
    if (verdict == NOT_COUNTED)
        return uncounted_call(real, a);
    if (verdict == REFUSED)
        quota_count(REFUSALS);
    return result;
}

/* In a capture nothing is allocated: the graph does that when it is launched. */
static bool is_capturing(long stream)
{
    static _Atomic(void *) known;
    int status = 0;
    if (stream == 0 && share_hook->is_per_thread)
        stream = STREAM_PER_THREAD;
    if (stream == 0 || stream == STREAM_LEGACY)
        return false; /* it cannot be captured */
    void *ask = driver_once(&known, "cuStreamIsCapturing");
    return ask != NULL && (int)call(ask, (long[ARGUMENTS]){stream, (long)&status}) == CUDA_SUCCESS && status != 0;
}

/* cuMemAllocAsync(*address, bytes, stream) */
long on_alloc_async(void *real, long *a)
{
    static _Atomic(void *) known;
    void *handle = NULL;
    if (!is_capped())
        return call(real, a);
    int ordinal = ordinal_current();
    void *get_pool = driver_once(&known, "cuDeviceGetMemPool");
    if (is_capturing(a[2]) || ordinal < 0 || get_pool == NULL ||
        (int)call(get_pool, (long[ARGUMENTS]){(long)&handle, ordinal}) != CUDA_SUCCESS)
        return uncounted_call(real, a); /* it fails without a context */
    return alloc(real, a, (uintptr_t)handle, job_gpu(ordinal), a[2]);
}

/* cuMemAllocFromPoolAsync(*address, bytes, pool, stream) */
long on_alloc_from_pool(void *real, long *a)
{
    if (!is_capped() || a[2] == 0)
        return call(real, a);
    if (is_capturing(a[3]))
        return uncounted_call(real, a);
    pthread_mutex_lock(&guard);
    const struct pool *pool = find((uint64_t)a[2], job_gpu_current()); /* an unknown pool is its GPU's default */
    int gpu = pool != NULL ? pool->gpu : -1;
    pthread_mutex_unlock(&guard);
    return gpu == GPU_IS_HOST ? call(real, a) : alloc(real, a, (uint64_t)a[2], gpu, a[3]);
}

/* cuMemPoolCreate(*pool, *properties) */
long on_pool_create(void *real, long *a)
{
    uint64_t handle;
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS || !is_capped())
        return result;
    memcpy(&handle, (void *)a[0], sizeof handle);
    int gpu = gpu_of_properties((const void *)a[1]);
    pthread_mutex_lock(&guard);
    find(handle, gpu);
    pthread_mutex_unlock(&guard);
    return result;
}

/* cuMemPoolDestroy(pool). Its live allocations stay until they are freed, but nothing reports their size then. */
long on_pool_destroy(void *real, long *a)
{
    if (!is_capped() || a[0] == 0)
        return call(real, a);
    pthread_mutex_lock(&guard); /* the handle may belong to another pool at once */
    struct pool *pool = find((uint64_t)a[0], job_gpu_current());
    uint64_t used = pool != NULL && pool->charged != 0 ? attribute(pool, USED) : 0;
    long result = call(real, a);
    if (pool != NULL && (int)result == CUDA_SUCCESS) {
        quota_credit(pool->gpu, pool->charged);
        *pool = (struct pool){.handle = 0};
    }
    pthread_mutex_unlock(&guard);
    if (used != 0 && (int)result == CUDA_SUCCESS)
        say_not_counted();
    return result;
}
