/* cuGetProcAddress as the driver answers it: one function for each version, and for each kind of default
 * stream. */
#include <stdio.h>
#include <string.h>

#include "fake.h"

enum { PER_THREAD_FLAG = 2, FOUND = 0, NO_SYMBOL = 1, TOO_OLD = 2, FIRST_PER_THREAD = 7000 };

extern const struct symbol __start_symbols[], __stop_symbols[];

/* The version of CUDA that brought a function, where it was not 3.2 for a _v2 and the first one for the
 * others. */
static int since(const char *name)
{
    static const struct {
        const char *name;
        int version;
    } known[] = {
        {"cuCtxDestroy_v2", 4000},
        {"cuCtxPopCurrent_v2", 4000},
        {"cuCtxPushCurrent_v2", 4000},
        {"cuStreamDestroy_v2", 4000},
        {"cuEventDestroy_v2", 4000},
        {"cuCtxCreate_v3", 11040},
        {"cuCtxCreate_v4", 12050},
        {"cuCtxSynchronize_v2", 13000},
        {"cuCtxGetDevice_v2", 13000},
        {"cuDeviceGetUuid_v2", 11040},
        {"cuDevicePrimaryCtxRelease_v2", 11000},
        {"cuDevicePrimaryCtxReset_v2", 11000},
        {"cuDevicePrimaryCtxSetFlags_v2", 11000},
        {"cuStreamBeginCapture_v2", 10010},
        {"cuStreamGetCaptureInfo_v2", 11030},
        {"cuGraphInstantiate_v2", 11000},
        {"cuMemPrefetchAsync_v2", 12020},
        {"cuGetProcAddress_v2", 12000},
        {"cuStreamWaitValue32_v2", 11070},
        {"cuStreamWaitValue64_v2", 11070},
        {"cuStreamWriteValue32_v2", 11070},
        {"cuStreamWriteValue64_v2", 11070},
        {"cuLaunchKernelEx", 11060},
        {"cuLaunchKernel", 4000},
        {"cuGraphLaunch", 10000},
        {"cuMemAllocAsync", 11020},
        {"cuStreamBeginCaptureToGraph", 12030},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name))
            return known[i].version;
    return strstr(name, "_v2") ? 3020 : 0;
}

/* Splits "cuMemcpyHtoD_v2_ptds" into base, version and whether it is the per-thread one. */
static int split(const char *symbol, char *base, size_t size, bool *per_thread)
{
    char *end, *number;

    snprintf(base, size, "%s", symbol);
    end = base + strlen(base);
    *per_thread = end - base > 5 && (!strcmp(end - 5, "_ptsz") || !strcmp(end - 5, "_ptds"));
    if (*per_thread)
        end[-5] = 0;
    number = strrchr(base, '_');
    if (!number || number[1] != 'v' || number[2] < '2' || number[2] > '9' || number[3])
        return 1;
    *number = 0;
    return number[2] - '0';
}

/* A plain name may be asked for, or one with its version. */
static int look_up(const char *name, void **to, int version, u64 flags, int *status)
{
    char base[96], versioned[96], whole[96];
    bool per_thread, best_is_per_thread = false,
                     wants_per_thread = (flags & PER_THREAD_FLAG) && version >= FIRST_PER_THREAD;
    int number, best = 0;

    *to = NULL;
    *status = NO_SYMBOL;
    for (const struct symbol *one = __start_symbols; one < __stop_symbols; one++) {
        number = split(one->name, base, sizeof base, &per_thread);
        snprintf(whole, sizeof whole, "%.*s", (int)(strlen(one->name) - (per_thread ? 5 : 0)), one->name);
        snprintf(versioned, sizeof versioned, "%s", whole);
        if ((strcmp(base, name) && strcmp(versioned, name)) || (per_thread && !wants_per_thread))
            continue;
        if (since(whole) > version) {
            *status = *to ? FOUND : TOO_OLD;
            continue;
        }
        if (number > best || (number == best && per_thread && !best_is_per_thread)) {
            best = number;
            best_is_per_thread = per_thread;
            *to = one->function;
            *status = FOUND;
        }
    }
    return *to ? SUCCESS : NOT_FOUND;
}

/* From CUDA 12 on the status says what is wrong, and the call succeeds. */
static int look_up_v2(const char *name, void **to, int version, u64 flags, int *status)
{
    int ignored;

    if (!name || !to)
        return INVALID_VALUE;
    look_up(name, to, version, flags, status ? status : &ignored);
    return *to ? SUCCESS : NOT_FOUND;
}

static int look_up_v1(const char *name, void **to, int version, u64 flags)
{
    int ignored;

    return name && to ? look_up(name, to, version, flags, &ignored) : INVALID_VALUE;
}

static int export_table(const void **to, const unsigned char *id)
{
    static void *const table[2] = {(void *)sizeof table, NULL};

    if (!id || id[0] != 0x6e)
        return NOT_FOUND;
    *to = table;
    return SUCCESS;
}

static int name_error(int code, const char **to)
{
    static const struct {
        int code;
        const char *name;
    } known[] = {
        {SUCCESS, "CUDA_SUCCESS"},
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {NOT_READY, "CUDA_ERROR_NOT_READY"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].code == code) {
            *to = known[i].name;
            return SUCCESS;
        }
    *to = "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

API(cuGetProcAddress, (const char *name, void **to, int version, u64 flags),
    look_up_v1(name, to, version, flags))
API(cuGetProcAddress_v2, (const char *name, void **to, int version, u64 flags, int *status),
    look_up_v2(name, to, version, flags, status))
API(cuGetExportTable, (const void **to, const unsigned char *id), export_table(to, id))
API(cuGetErrorName, (int error, const char **to), name_error(error, to))
API(cuGetErrorString, (int error, const char **to), name_error(error, to))
