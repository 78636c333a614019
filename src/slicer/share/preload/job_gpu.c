/* Finds the job's GPU by its UUID, because every process numbers its visible GPUs in its own way. */
#include "cap.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { ORDINALS = 64, UNKNOWN = 0, OTHER = 1, FIRST = 2, UUID_BYTES = 16 };

static _Atomic int8_t known[ORDINALS];

/* What follows "GPU-" or "MIG-". */
static const char *digits(const char *uuid)
{
    const char *dash = strchr(uuid, '-');
    return dash == NULL ? uuid : dash + 1;
}

int job_gpu_of(const struct job_file *file, const char *uuid)
{
    uint32_t count = file->gpu_count < JOB_MAX_GPUS ? file->gpu_count : JOB_MAX_GPUS;
    for (uint32_t gpu = 0; gpu < count; gpu++) {
        char mine[JOB_UUID_CHARS + 1] = "";
        memcpy(mine, file->gpus[gpu], JOB_UUID_CHARS);
        if (mine[0] != '\0' && strcasecmp(digits(mine), digits(uuid)) == 0)
            return (int)gpu;
    }
    return -1;
}

/* cuDeviceGetUuid identifies the GPU, _v2 the MIG instance if there are any. A lease names the GPU. */
static bool ask(const struct job_file *file, const char *symbol, int ordinal, int *gpu)
{
    unsigned char b[UUID_BYTES] = {0};
    long a[ARGUMENTS] = {(long)b, ordinal};
    void *real = driver(symbol);
    if (real == NULL || (int)call(real, a) != CUDA_SUCCESS)
        return false;
    char uuid[JOB_UUID_CHARS];
    snprintf(uuid, sizeof uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
             b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    *gpu = job_gpu_of(file, uuid);
    return true;
}

int job_gpu(int ordinal)
{
    if (ordinal < 0)
        return -1;
    int8_t seen = ordinal < ORDINALS ? atomic_load_explicit(&known[ordinal], memory_order_relaxed) : UNKNOWN;
    if (seen != UNKNOWN)
        return seen == OTHER ? -1 : seen - FIRST;
    const struct job_file *file = job_said();
    if (file == NULL)
        return -1;
    int gpu = -1;
    bool told = ask(file, "cuDeviceGetUuid", ordinal, &gpu);
    if (gpu < 0)
        told = ask(file, "cuDeviceGetUuid_v2", ordinal, &gpu) || told;
    if (told && ordinal < ORDINALS)
        atomic_store_explicit(&known[ordinal], (int8_t)(gpu < 0 ? OTHER : FIRST + gpu), memory_order_relaxed);
    return gpu;
}

int ordinal_current(void)
{
    static _Atomic(void *) known_get_device;
    int ordinal = -1;
    long a[ARGUMENTS] = {(long)&ordinal};
    void *real = driver_once(&known_get_device, "cuCtxGetDevice");
    return real != NULL && (int)call(real, a) == CUDA_SUCCESS ? ordinal : -1;
}

int job_gpu_current(void)
{
    return job_gpu(ordinal_current());
}
