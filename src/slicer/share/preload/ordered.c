/* Stream-ordered allocation: cuMemAllocAsync, cuMemAllocFromPoolAsync, and their pools. */
#include "cap.h"

#include <string.h>

enum {
    POOL_OF_HOST = -2,                               /* the "GPU" of a pool that is on none */
    LOCATION_TYPE = 8, LOCATION_ID = 12, DEVICE = 1, /* CUmemPoolProps: places in bytes, and a type */
    STREAM_LEGACY = 1, STREAM_PER_THREAD = 2
};

static long alloc(void *real, long *a, uint64_t handle, int gpu)
{
    uint64_t limit, grown;
    struct held what = {.kind = KIND_ADDRESS, .bytes = (uint64_t)a[1], .link = POOLED | (unsigned)gpu, .gpu = gpu};
    if (gpu < 0)
        return elsewhere_call(real, a);
    if (!job_limit(gpu, &limit) || what.bytes == 0)
        return call(real, a);
    enum verdict verdict = pools_charge(handle, gpu, what.bytes, &what.pool, &grown);
    if (what.pool == NO_POOL)
        return charged_call(real, a, what, remember);
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
    if (grown != 0)
        pools_settle(what.pool);
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
    static _Atomic(void *) known;
    int ordinal = -1;
    void *real = driver_once(&known, "cuStreamGetDevice");
    if (stream != 0 && stream != STREAM_LEGACY && stream != STREAM_PER_THREAD && real != NULL &&
        (int)call(real, (long[ARGUMENTS]){stream, (long)&ordinal}) == CUDA_SUCCESS)
        return ordinal;
    return ordinal_current();
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
    int gpu = -1;
    if (pools_find((uint64_t)a[2], &gpu) == NO_POOL)
        gpu = job_gpu(ordinal_of(a[3])); /* the default one of its GPU */
    if (gpu == POOL_OF_HOST)
        return call(real, a);
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
    pools_made(handle, type == DEVICE ? job_gpu(ordinal) : POOL_OF_HOST);
    return result;
}

/* cuMemPoolDestroy(pool): what lives in it stays until it is freed. */
long on_pool_destroy(void *real, long *a)
{
    int gpu;
    int place = is_capped() ? pools_find((uint64_t)a[0], &gpu) : NO_POOL;
    if (place == NO_POOL)
        return call(real, a);
    pools_rename(place, 0);
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS)
        pools_rename(place, (uint64_t)a[0]);
    else
        pools_settle(place);
    return result;
}

/* cuMemPoolTrimTo(pool, bytes) */
long on_pool_trim(void *real, long *a)
{
    int gpu;
    long result = call(real, a);
    int place = (int)result == CUDA_SUCCESS && is_capped() ? pools_find((uint64_t)a[0], &gpu) : NO_POOL;
    if (place != NO_POOL)
        pools_settle(place);
    return result;
}
