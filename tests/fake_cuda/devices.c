/* Which GPUs there are: those of fake_nvml's state file, or of FAKE_CUDA_GPUS ("UUID:MIB,UUID:MIB"). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

struct gpu gpus[MAX_GPUS];
int gpu_count;

static struct gpu all[MAX_GPUS];
static int all_count;

static void read_state(void)
{
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[4400], uuid[48];
    unsigned i;
    unsigned long long mib;

    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "gpu %u %47s %llu", &i, uuid, &mib) == 3 && (int)i == all_count &&
            all_count < MAX_GPUS) {
            strcpy(all[all_count].uuid, uuid);
            all[all_count].bytes = mib * MIB;
            all[all_count].index = all_count;
            all_count++;
        }
    if (file)
        fclose(file);
}

static void read_variable(void)
{
    const char *at = getenv("FAKE_CUDA_GPUS");
    unsigned long long mib;
    char uuid[48];

    for (; at && all_count < MAX_GPUS; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (sscanf(at, "%47[^:,]:%llu", uuid, &mib) == 2) {
            strcpy(all[all_count].uuid, uuid);
            all[all_count].bytes = mib * MIB;
            all[all_count].index = all_count;
            all_count++;
        }
}

static int find(const char *word, size_t length)
{
    char *end;
    long number = strtol(word, &end, 10);

    if (end == word + length && length)
        return number >= 0 && number < all_count ? (int)number : -1;
    for (int i = 0; i < all_count; i++)
        if (length > 4 && !strncmp(all[i].uuid, word, length))
            return i;
    return -1;
}

/* As the driver reads CUDA_VISIBLE_DEVICES: the first word that is wrong ends the list. */
static void choose(void)
{
    const char *word = getenv("CUDA_VISIBLE_DEVICES");
    int found;

    if (!word) {
        memcpy(gpus, all, sizeof all);
        gpu_count = all_count;
        return;
    }
    while (*word && gpu_count < MAX_GPUS) {
        found = find(word, strcspn(word, ","));
        if (found < 0)
            return;
        gpus[gpu_count++] = all[found];
        word += strcspn(word, ",");
        word += *word == ',';
    }
}

int read_gpus(void)
{
    gpu_count = all_count = 0;
    read_state();
    if (!all_count)
        read_variable();
    choose();
    return gpu_count ? SUCCESS : NO_DEVICE;
}

u64 foreign_bytes(int index)
{
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[4400];
    int gpu;
    u64 mib = 0;
    unsigned long long some;

    while (file && fgets(line, sizeof line, file))
        if ((sscanf(line, "used %d %llu", &gpu, &some) == 2 ||
             sscanf(line, "process %d %*u %llu", &gpu, &some) == 2) &&
            gpu == index)
            mib += some;
    if (file)
        fclose(file);
    return mib * MIB;
}

static int init(void)
{
    int code;

    if (initialised)
        return SUCCESS;
    code = read_gpus();
    if (code == SUCCESS)
        code = open_shared();
    initialised = code == SUCCESS;
    return code;
}

static int locked_init(void)
{
    int code;

    pthread_mutex_lock(&lock);
    code = init();
    pthread_mutex_unlock(&lock);
    return code;
}

static int give(int *to, int value)
{
    if (!to)
        return INVALID_VALUE;
    *to = value;
    return SUCCESS;
}

static bool is_gpu(int ordinal)
{
    return ordinal >= 0 && ordinal < gpu_count;
}

static int give_uuid(unsigned char *to, int ordinal)
{
    const char *text = gpus[ordinal].uuid;
    unsigned byte;

    text += strncmp(text, "GPU-", 4) ? 0 : 4;
    memset(to, 0, 16);
    for (int i = 0; i < 16; i++, text += 2) {
        text += *text == '-';
        if (sscanf(text, "%2x", &byte) != 1)
            break;
        to[i] = (unsigned char)byte;
    }
    return SUCCESS;
}

static int give_name(char *to, int size, const char *name)
{
    if (!to || size < 1)
        return INVALID_VALUE;
    snprintf(to, (size_t)size, "%s", name);
    return SUCCESS;
}

/* CUdevice_attribute: what a program looks at before it begins. */
static int attribute(int which)
{
    switch (which) {
    case 1: return 1024; /* threads in a block */
    case 2:
    case 3: return 1024;       /* block x, y */
    case 4: return 64;         /* block z */
    case 5: return 2147483647; /* grid x */
    case 6:
    case 7: return 65535;    /* grid y, z */
    case 8: return 49152;    /* shared memory of a block */
    case 10: return 32;      /* warp */
    case 13: return 1980000; /* clock, kHz */
    case 16: return 132;     /* multiprocessors */
    case 39: return 2048;    /* threads of a multiprocessor */
    case 41: return 1;       /* unified addressing */
    case 75: return 9;       /* compute capability */
    case 76: return 0;
    case 83:
    case 102:
    case 115: return 1; /* managed memory, VMM, memory pools */
    default: return 0;
    }
}

static int give_total(size_t *to, int ordinal)
{
    if (!is_gpu(ordinal))
        return INVALID_DEVICE;
    if (!to)
        return INVALID_VALUE;
    *to = gpus[ordinal].bytes;
    return SUCCESS;
}

static int give_bus_id(char *to, int size, int ordinal)
{
    if (!is_gpu(ordinal))
        return INVALID_DEVICE;
    if (size < 13)
        return INVALID_VALUE;
    snprintf(to, (size_t)size, "0000:%02x:00.0", gpus[ordinal].index + 1);
    return SUCCESS;
}

API(cuInit, (unsigned flags), flags ? INVALID_VALUE : locked_init())
API(cuDriverGetVersion, (int *to), give(to, (int)setting("FAKE_CUDA_VERSION", 12090)))
API(cuDeviceGetCount, (int *to), give(to, gpu_count))
API(cuDeviceGet, (int *to, int ordinal), is_gpu(ordinal) ? give(to, ordinal) : INVALID_DEVICE)
API(cuDeviceGetName, (char *to, int size, int ordinal),
    is_gpu(ordinal) ? give_name(to, size, "Fake GPU (no hardware)") : INVALID_DEVICE)
API(cuDeviceGetUuid, (unsigned char *to, int ordinal),
    is_gpu(ordinal) ? give_uuid(to, ordinal) : INVALID_DEVICE)
API(cuDeviceGetUuid_v2, (unsigned char *to, int ordinal),
    is_gpu(ordinal) ? give_uuid(to, ordinal) : INVALID_DEVICE)
API(cuDeviceGetAttribute, (int *to, int which, int ordinal),
    is_gpu(ordinal) ? give(to, attribute(which)) : INVALID_DEVICE)
API(cuDeviceTotalMem, (unsigned *to, int ordinal),
    is_gpu(ordinal)
        ? (*to = gpus[ordinal].bytes > UINT32_MAX ? UINT32_MAX : (unsigned)gpus[ordinal].bytes, SUCCESS)
        : INVALID_DEVICE)
API(cuDeviceTotalMem_v2, (size_t *to, int ordinal), give_total(to, ordinal))
API(cuDeviceGetPCIBusId, (char *to, int size, int ordinal), give_bus_id(to, size, ordinal))
API(cuDeviceComputeCapability, (int *major, int *minor, int ordinal),
    is_gpu(ordinal) ? (give(major, 9), give(minor, 0)) : INVALID_DEVICE)
API(cuDeviceCanAccessPeer, (int *to, int one, int other),
    is_gpu(one) && is_gpu(other) ? give(to, one != other) : INVALID_DEVICE)
