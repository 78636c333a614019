/* What programs are told of the card: the cap in place of its size. NVML's answer is in nvml.c. */
#include "cap.h"

/* cuMemGetInfo(*free, *total) */
long on_mem_get_info(void *real, long *a)
{
    static struct versions versions;
    uint64_t limit;
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS || !is_capped() || is_first_version(real, "cuMemGetInfo", &versions))
        return result;
    int gpu = job_gpu_current();
    if (!job_limit(gpu, &limit))
        return result;
    uint64_t used = quota_used(gpu);
    size_t *unused = (size_t *)a[0];
    size_t *total = (size_t *)a[1];
    if (unused != NULL)
        *unused = least(*unused, used < limit ? limit - used : 0);
    if (total != NULL)
        *total = least(*total, limit);
    return result;
}

/* cuDeviceTotalMem(*bytes, device) */
long on_total_mem(void *real, long *a)
{
    static struct versions versions;
    uint64_t limit;
    long result = call(real, a);
    if ((int)result == CUDA_SUCCESS && a[0] != 0 && is_capped() && !is_first_version(real, "cuDeviceTotalMem", &versions) &&
        job_limit(job_gpu((int)a[1]), &limit))
        *(size_t *)a[0] = least(*(size_t *)a[0], limit);
    return result;
}
