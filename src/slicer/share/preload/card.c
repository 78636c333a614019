/* What programs learn about the card from the driver and NVML: the cap instead of its size. */
#include "cap.h"

#include <dlfcn.h>

/* cuMemGetInfo(*free, *total) */
long on_mem_get_info(void *real, long *a)
{
    uint64_t limit;
    long result = call(real, a);
    int gpu = (int)result == CUDA_SUCCESS && is_capped() ? job_gpu_current() : -1;
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
    uint64_t limit;
    long result = call(real, a);
    if ((int)result == CUDA_SUCCESS && a[0] != 0 && is_capped() && job_limit(job_gpu((int)a[1]), &limit))
        *(size_t *)a[0] = least(*(size_t *)a[0], limit);
    return result;
}

/* slicer itself sets this inside a sharing job: its decisions need the real card, not the job's part. */
EXPORTED int slicer_share_shows_card;

struct memory {
    unsigned long long total, unused, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, unused, used;
};

/* The function in the same library as `real`: a program may have loaded NVML under any name. */
static void *neighbour(void *real, const char *symbol)
{
    Dl_info info;
    if (dladdr(real, &info) == 0 || info.dli_fname == NULL)
        return NULL;
    void *library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return NULL;
    void *found = dlsym(library, symbol);
    dlclose(library); /* `real` is being called, so the library stays */
    return found;
}

/* The cap on the GPU with this handle, and the job's use of it. False: there is no cap. */
static bool cap_of(void *real, long device, uint64_t *limit, uint64_t *used)
{
    char uuid[96] = "";
    const struct job_file *said = job_said();
    if (slicer_share_shows_card || said == NULL || !is_capped())
        return false;
    long a[ARGUMENTS] = {device, (long)uuid, sizeof uuid};
    void *get_uuid = neighbour(real, "nvmlDeviceGetUUID");
    bool is_told = get_uuid != NULL && (int)call(get_uuid, a) == 0;
    uuid[sizeof uuid - 1] = '\0';
    int gpu = is_told ? job_gpu_of(said, uuid) : -1;
    bool has_cap = job_limit(gpu, limit);
    if (has_cap)
        *used = quota_used(gpu);
    return has_cap;
}

/* nvmlDeviceGetMemoryInfo(device, *memory). Everything that is not free counts as used, as on the real card. */
long on_nvml_memory_info(void *real, long *a)
{
    uint64_t limit, used;
    long result = call(real, a);
    struct memory *memory = (struct memory *)a[1];
    if ((int)result != 0 || memory == NULL || !cap_of(real, a[0], &limit, &used))
        return result;
    memory->total = least(memory->total, limit);
    memory->unused = least(memory->unused, memory->total - least(used, memory->total));
    memory->used = memory->total - memory->unused;
    return result;
}

/* nvmlDeviceGetMemoryInfo_v2(device, *memory). What is neither used by the job nor free counts as reserved. */
long on_nvml_memory_info_v2(void *real, long *a)
{
    uint64_t limit, used;
    long result = call(real, a);
    struct memory_v2 *memory = (struct memory_v2 *)a[1];
    if ((int)result != 0 || memory == NULL || !cap_of(real, a[0], &limit, &used))
        return result;
    memory->total = least(memory->total, limit);
    memory->used = least(used, memory->total);
    memory->unused = least(memory->unused, memory->total - memory->used);
    memory->reserved = memory->total - memory->used - memory->unused;
    return result;
}
