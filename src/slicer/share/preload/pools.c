/* Stream-ordered allocation: cuMemAllocAsync, cuMemAllocFromPoolAsync.
 *
 * A pool keeps memory that was freed, up to its release threshold, and serves later allocations from it. That is in use
 * as far as the card goes. So a pool is charged what lives in it, or what it will keep if that is more: an allocation
 * from what it keeps costs nothing, and a free that it keeps gives nothing back. Before an allocation is refused, the
 * pools of the process are trimmed, as the driver does it when a card is full. */
#include "cap.h"

#include <pthread.h>
#include <string.h>

enum {
    POOLS = 64,
    HOST = -2,                                        /* the "GPU" of a pool that is not on one */
    THRESHOLD = 4, RESERVED = 5,                      /* CUmemPool_attribute */
    LOCATION_TYPE = 8, LOCATION_ID = 12, DEVICE = 1,  /* CUmemPoolProps: places in bytes, and a type */
    STREAM_LEGACY = 1, STREAM_PER_THREAD = 2
};

static const uint64_t pooled = UINT64_C(1) << 63; /* the link of what is in a pool of this GPU: no context's address */

struct pool {
    uint64_t handle; /* 0: it was destroyed, or there was none */
    uint64_t live;
    uint64_t charged; /* never less than live */
    int gpu;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* never held while memory is asked for */
static struct pool pools[POOLS];

static bool attribute(uint64_t handle, int name, uint64_t *value)
{
    static _Atomic(void *) known;
    void *real = driver_once(&known, "cuMemPoolGetAttribute");
    long a[ARGUMENTS] = {(long)handle, name, (long)value};
    return real != NULL && (int)call(real, a) == CUDA_SUCCESS;
}

/* Charge the pool what it holds and will keep. What does not fit under the cap any more is left to the supervisor. */
static void settle(struct pool *pool)
{
    uint64_t reserved = 0, threshold = 0;
    uint64_t target = pool->live;
    if (pool->handle != 0 && attribute(pool->handle, RESERVED, &reserved) &&
        attribute(pool->handle, THRESHOLD, &threshold)) {
        uint64_t kept = reserved < threshold ? reserved : threshold;
        target = kept > target ? kept : target;
    }
    if (target < pool->charged)
        quota_credit(pool->gpu, pool->charged - target);
    else if (target > pool->charged && quota_charge(pool->gpu, target - pool->charged) != CHARGED)
        return;
    pool->charged = target;
}

static bool trim(int gpu)
{
    void *real = driver("cuMemPoolTrimTo");
    bool is_less = false;
    for (struct pool *pool = pools; pool < pools + POOLS; pool++) {
        uint64_t before = pool->charged;
        if (pool->gpu != gpu || before == pool->live)
            continue;
        long a[ARGUMENTS] = {(long)pool->handle, 0};
        if (pool->handle != 0 && real != NULL)
            call(real, a);
        settle(pool);
        is_less = is_less || pool->charged < before;
    }
    return is_less;
}

bool pools_trim(int gpu)
{
    pthread_mutex_lock(&guard);
    bool is_less = trim(gpu);
    pthread_mutex_unlock(&guard);
    return is_less;
}

static int place_of(uint64_t handle)
{
    for (int place = 0; place < POOLS; place++)
        if (pools[place].handle == handle)
            return place;
    return NO_POOL;
}

/* Its place, and a new one if it has none; NO_POOL: all are taken. */
static int enter(uint64_t handle, int gpu)
{
    int place = place_of(handle);
    for (int next = 0; place == NO_POOL && next < POOLS; next++)
        if (pools[next].handle == 0 && pools[next].live == 0) {
            pools[next] = (struct pool){.handle = handle, .gpu = gpu};
            place = next;
        }
    return place;
}

/* Charge what the pool does not keep already. `*grown`: how much that was. */
static enum verdict grow(struct pool *pool, uint64_t bytes, uint64_t *grown)
{
    enum verdict verdict = CHARGED;
    for (int tries = 0; tries < 2; tries++) {
        uint64_t kept = pool->charged - pool->live;
        *grown = bytes > kept ? bytes - kept : 0;
        verdict = *grown == 0 ? CHARGED : quota_charge(pool->gpu, *grown);
        if (verdict != REFUSED || !trim(pool->gpu))
            break;
    }
    if (verdict == CHARGED) {
        pool->live += bytes;
        pool->charged += *grown;
    } else if (verdict == REFUSED) {
        quota_count_refused();
    }
    return verdict;
}

static void shrink(struct pool *pool, uint64_t bytes)
{
    pool->live -= bytes < pool->live ? bytes : pool->live;
    if (pool->charged != pool->live)
        settle(pool);
}

void pools_freed(const struct held *what)
{
    if (what->pool < 0 || what->pool >= POOLS)
        return;
    pthread_mutex_lock(&guard);
    shrink(&pools[what->pool], what->bytes);
    pthread_mutex_unlock(&guard);
}

/* The place of an allocation that is charged now, or why it is not. */
static enum verdict charge_pool(uint64_t handle, int gpu, uint64_t bytes, int *place, uint64_t *grown)
{
    enum verdict verdict = NOT_COUNTED;
    pthread_mutex_lock(&guard);
    *place = enter(handle, gpu);
    if (*place != NO_POOL)
        verdict = grow(&pools[*place], bytes, grown);
    pthread_mutex_unlock(&guard);
    return verdict;
}

static long alloc(void *real, long *a, uint64_t handle, int gpu)
{
    uint64_t limit, grown;
    struct held what = {.kind = KIND_ADDRESS, .bytes = (uint64_t)a[1], .link = pooled | (unsigned)gpu, .gpu = gpu};
    if (gpu < 0)
        return elsewhere_call(real, a);
    if (!job_limit(gpu, &limit) || what.bytes == 0)
        return call(real, a);
    enum verdict verdict = charge_pool(handle, gpu, what.bytes, &what.pool, &grown);
    if (what.pool == NO_POOL)
        return charged_call(real, a, what);
    if (verdict == REFUSED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (verdict != CHARGED)
        return uncounted_call(real, a);
    fault("memory-charged");
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS) {
        pools_freed(&what);
        return result;
    }
    memcpy(&what.key, (void *)a[0], sizeof what.key);
    remember(what);
    pthread_mutex_lock(&guard);
    if (grown != 0)
        settle(&pools[what.pool]);
    pthread_mutex_unlock(&guard);
    return result;
}

/* -- streams ---------------------------------------------------------------------------------------------------------- */

/* In a capture nothing is allocated: the graph does it, when it is launched. `variant`: the same function, for which
 * the stream 0 is each thread's own. */
static bool is_capturing(long stream, void *real, const char *variant, _Atomic(void *) *known_variant)
{
    static _Atomic(void *) known;
    int status = 0;
    if (stream == 0 && driver_once(known_variant, variant) == real)
        stream = STREAM_PER_THREAD;
    if (stream == 0 || stream == STREAM_LEGACY)
        return false; /* it cannot be captured */
    void *ask = driver_once(&known, "cuStreamIsCapturing");
    long a[ARGUMENTS] = {stream, (long)&status};
    return ask != NULL && (int)call(ask, a) == CUDA_SUCCESS && status != 0;
}

/* The ordinal of the stream's GPU; -1: it cannot be told. */
static int ordinal_of(long stream)
{
    static _Atomic(void *) known_stream, known_context;
    int ordinal = -1;
    void *real = driver_once(&known_stream, "cuStreamGetDevice");
    if (stream != 0 && stream != STREAM_LEGACY && stream != STREAM_PER_THREAD && real != NULL &&
        (int)call(real, (long[ARGUMENTS]){stream, (long)&ordinal}) == CUDA_SUCCESS)
        return ordinal;
    real = driver_once(&known_context, "cuCtxGetDevice");
    if (real == NULL || (int)call(real, (long[ARGUMENTS]){(long)&ordinal}) != CUDA_SUCCESS)
        return -1;
    return ordinal;
}

/* cuMemAllocAsync(*address, bytes, stream) */
long on_alloc_async(void *real, long *a)
{
    static _Atomic(void *) variant, known;
    void *handle = NULL;
    if (!is_capped())
        return call(real, a);
    if (is_capturing(a[2], real, "cuMemAllocAsync_ptsz", &variant))
        return uncounted_call(real, a);
    int ordinal = ordinal_of(a[2]);
    void *get_pool = driver_once(&known, "cuDeviceGetMemPool");
    if (ordinal < 0 || get_pool == NULL ||
        (int)call(get_pool, (long[ARGUMENTS]){(long)&handle, ordinal}) != CUDA_SUCCESS)
        return uncounted_call(real, a); /* without a context it fails */
    return alloc(real, a, (uintptr_t)handle, job_gpu(ordinal));
}

/* cuMemAllocFromPoolAsync(*address, bytes, pool, stream) */
long on_alloc_from_pool(void *real, long *a)
{
    static _Atomic(void *) variant;
    if (!is_capped() || a[2] == 0)
        return call(real, a);
    if (is_capturing(a[3], real, "cuMemAllocFromPoolAsync_ptsz", &variant))
        return uncounted_call(real, a);
    pthread_mutex_lock(&guard);
    int place = place_of((uint64_t)a[2]);
    int gpu = place == NO_POOL ? -1 : pools[place].gpu;
    pthread_mutex_unlock(&guard);
    if (gpu == HOST)
        return call(real, a);
    if (place == NO_POOL) /* the default one of its GPU */
        gpu = job_gpu(ordinal_of(a[3]));
    return alloc(real, a, (uint64_t)a[2], gpu);
}

/* cuMemFreeAsync(address, stream) */
long on_free_async(void *real, long *a)
{
    static _Atomic(void *) variant;
    if (!is_capped() || is_capturing(a[1], real, "cuMemFreeAsync_ptsz", &variant))
        return call(real, a);
    return free_call(real, a, KIND_ADDRESS);
}

/* -- pools ------------------------------------------------------------------------------------------------------------ */

/* cuMemPoolCreate(*pool, *properties) */
long on_pool_create(void *real, long *a)
{
    int type = 0, ordinal = -1;
    uint64_t handle;
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS || !is_capped())
        return result;
    memcpy(&type, (char *)a[1] + LOCATION_TYPE, sizeof type);
    memcpy(&ordinal, (char *)a[1] + LOCATION_ID, sizeof ordinal);
    memcpy(&handle, (void *)a[0], sizeof handle);
    int gpu = type == DEVICE ? job_gpu(ordinal) : HOST;
    pthread_mutex_lock(&guard);
    enter(handle, gpu);
    pthread_mutex_unlock(&guard);
    return result;
}

/* cuMemPoolDestroy(pool): what lives in it stays until it is freed. */
long on_pool_destroy(void *real, long *a)
{
    if (!is_capped() || a[0] == 0)
        return call(real, a);
    pthread_mutex_lock(&guard);
    int place = place_of((uint64_t)a[0]);
    if (place != NO_POOL)
        pools[place].handle = 0;
    pthread_mutex_unlock(&guard);
    long result = call(real, a);
    pthread_mutex_lock(&guard);
    if (place != NO_POOL && (int)result != CUDA_SUCCESS)
        pools[place].handle = (uint64_t)a[0];
    else if (place != NO_POOL)
        settle(&pools[place]);
    pthread_mutex_unlock(&guard);
    return result;
}

/* cuMemPoolTrimTo(pool, bytes) */
long on_pool_trim(void *real, long *a)
{
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS || !is_capped() || a[0] == 0)
        return result;
    pthread_mutex_lock(&guard);
    int place = place_of((uint64_t)a[0]);
    if (place != NO_POOL)
        settle(&pools[place]);
    pthread_mutex_unlock(&guard);
    return result;
}

void pools_gone(int gpu)
{
    struct held what;
    size_t from = 0;
    if (gpu < 0)
        return;
    pthread_mutex_lock(&guard);
    while (held_take_linked(KIND_ADDRESS, pooled | (unsigned)gpu, &from, &what))
        if (what.pool == NO_POOL)
            quota_credit(gpu, what.bytes);
    for (struct pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool->gpu == gpu) {
            quota_credit(gpu, pool->charged);
            *pool = (struct pool){.handle = 0};
        }
    pthread_mutex_unlock(&guard);
}

void pools_after_fork(void)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&guard, &fresh, sizeof fresh);
    memset(pools, 0, sizeof pools);
}
