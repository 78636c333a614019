/* The driver's functions that the client calls, found in the way that its first argument names. */
#ifndef DRIVER_H
#define DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;
typedef void *pointer;

#define GRID unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, pointer
/* X(name, symbol for the linker and for dlsym, parameters): the name is what cuGetProcAddress is asked for.
 */
#define DRIVER(X) \
    X(cuInit, cuInit, (unsigned)) \
    X(cuDeviceGetCount, cuDeviceGetCount, (int *)) \
    X(cuDeviceGetName, cuDeviceGetName, (char *, int, int)) \
    X(cuDeviceGetUuid, cuDeviceGetUuid, (unsigned char *, int)) \
    X(cuDeviceTotalMem, cuDeviceTotalMem_v2, (size_t *, int)) \
    X(cuCtxCreate, cuCtxCreate_v2, (pointer *, unsigned, int)) \
    X(cuCtxDestroy, cuCtxDestroy_v2, (pointer)) \
    X(cuCtxSetCurrent, cuCtxSetCurrent, (pointer)) \
    X(cuCtxGetCurrent, cuCtxGetCurrent, (pointer *)) \
    X(cuCtxSynchronize, cuCtxSynchronize, (void)) \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (pointer *, int)) \
    X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, (int)) \
    X(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2, (int)) \
    X(cuModuleLoadData, cuModuleLoadData, (pointer *, const void *)) \
    X(cuModuleGetFunction, cuModuleGetFunction, (pointer *, pointer, const char *)) \
    X(cuLaunchKernel, cuLaunchKernel, (pointer, GRID, void **, void **)) \
    X(cuLaunchKernelEx, cuLaunchKernelEx, (const void *, pointer, void **, void **)) \
    X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, (pointer, GRID, void **)) \
    X(cuStreamCreate, cuStreamCreate, (pointer *, unsigned)) \
    X(cuStreamDestroy, cuStreamDestroy_v2, (pointer)) \
    X(cuStreamSynchronize, cuStreamSynchronize, (pointer)) \
    X(cuStreamQuery, cuStreamQuery, (pointer)) \
    X(cuStreamWaitEvent, cuStreamWaitEvent, (pointer, pointer, unsigned)) \
    X(cuStreamWaitValue32, cuStreamWaitValue32_v2, (pointer, u64, unsigned, unsigned)) \
    X(cuStreamWriteValue32, cuStreamWriteValue32_v2, (pointer, u64, unsigned, unsigned)) \
    X(cuLaunchHostFunc, cuLaunchHostFunc, (pointer, void (*)(void *), void *)) \
    X(cuEventCreate, cuEventCreate, (pointer *, unsigned)) \
    X(cuEventRecord, cuEventRecord, (pointer, pointer)) \
    X(cuEventSynchronize, cuEventSynchronize, (pointer)) \
    X(cuEventQuery, cuEventQuery, (pointer)) \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (pointer, int)) \
    X(cuStreamEndCapture, cuStreamEndCapture, (pointer, pointer *)) \
    X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (pointer *, pointer, u64)) \
    X(cuGraphLaunch, cuGraphLaunch, (pointer, pointer)) \
    X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (u64, const void *, size_t)) \
    X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *, u64, size_t)) \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (u64, const void *, size_t, pointer)) \
    X(cuMemsetD8Async, cuMemsetD8Async, (u64, unsigned char, size_t, pointer)) \
    X(cuMemAlloc, cuMemAlloc_v2, (u64 *, size_t)) \
    X(cuMemAllocPitch, cuMemAllocPitch_v2, (u64 *, size_t *, size_t, size_t, unsigned)) \
    X(cuMemAllocManaged, cuMemAllocManaged, (u64 *, size_t, unsigned)) \
    X(cuMemAllocAsync, cuMemAllocAsync, (u64 *, size_t, pointer)) \
    X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, (u64 *, size_t, pointer, pointer)) \
    X(cuMemFree, cuMemFree_v2, (u64)) \
    X(cuMemFreeAsync, cuMemFreeAsync, (u64, pointer)) \
    X(cuMemCreate, cuMemCreate, (u64 *, size_t, const void *, u64)) \
    X(cuMemRelease, cuMemRelease, (u64)) \
    X(cuMemAddressReserve, cuMemAddressReserve, (u64 *, size_t, size_t, u64, u64)) \
    X(cuMemMap, cuMemMap, (u64, size_t, size_t, u64, u64)) \
    X(cuMemUnmap, cuMemUnmap, (u64, size_t)) \
    X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, (u64 *, void *)) \
    X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, (pointer *, int)) \
    X(cuMemPoolCreate, cuMemPoolCreate, (pointer *, const void *)) \
    X(cuMemPoolDestroy, cuMemPoolDestroy, (pointer)) \
    X(cuMemPoolTrimTo, cuMemPoolTrimTo, (pointer, size_t)) \
    X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, (pointer, int, const void *)) \
    X(cuArrayCreate, cuArrayCreate_v2, (pointer *, const void *)) \
    X(cuArray3DCreate, cuArray3DCreate_v2, (pointer *, const void *)) \
    X(cuArrayDestroy, cuArrayDestroy, (pointer)) \
    X(cuMipmappedArrayCreate, cuMipmappedArrayCreate, (pointer *, const void *, unsigned)) \
    X(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, (pointer)) \
    X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *, size_t *))

#define DECLARED(name, symbol, parameters) int(*name) parameters;
struct driver {
    DRIVER(DECLARED)
    int (*cuGetProcAddress_v2)(const char *, void **, int, u64, int *);
    void *library; /* of dlopen; NULL where the program is linked */
};
extern struct driver cuda;

/* How: "dlsym", "proc", "ptsz" (cuGetProcAddress for per-thread default streams), "cudart" (as a static
 * cudart asks), "linked". 0, or -1 and a line on stderr. */
int find_driver(const char *how);

/* Asks for each function in all its versions, as a static cudart does, and uses none of the answers. How many
 * had one that was not the same as before. */
int ask_as_cudart(void);

#endif
