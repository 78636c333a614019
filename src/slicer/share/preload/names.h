/* The hooked functions by base name, and the names that programs linked with the driver bind. For names.c, exports.c. */
#ifndef SLICER_SHARE_NAMES_H
#define SLICER_SHARE_NAMES_H

/* X(base name, handler). Work's handler tells where its stream is: on_work_3 takes argument 3 (from 0), on_work_config
 * finds it in a CUlaunchConfig, on_work has none, or one whose place differs between versions of the function.
 *
 * Not here on purpose: cuStreamWaitValue*, cuStreamWriteValue*, cuStreamBatchMemOp*, cuLaunchHostFunc and events. Other
 * work waits for these, so one that waits for a turn could keep a turn from ending. */
#define HOOKS(X) \
    X(cuGetProcAddress, on_get_proc_address) \
    X(cuInit, on_init) \
    /* launches and graphs */ \
    X(cuLaunchKernel, on_work_8) \
    X(cuLaunchKernelEx, on_work_config) \
    X(cuLaunchCooperativeKernel, on_work_8) \
    X(cuLaunchCooperativeKernelMultiDevice, on_work) \
    X(cuLaunch, on_work) \
    X(cuLaunchGrid, on_work) \
    X(cuLaunchGridAsync, on_work_3) \
    X(cuGraphLaunch, on_work_1) \
    X(cuGraphUpload, on_work_1) \
    /* copies */ \
    X(cuMemcpy, on_work) \
    X(cuMemcpyAsync, on_work_3) \
    X(cuMemcpyPeer, on_work) \
    X(cuMemcpyPeerAsync, on_work_5) \
    X(cuMemcpyHtoD, on_work) \
    X(cuMemcpyHtoDAsync, on_work_3) \
    X(cuMemcpyDtoH, on_work) \
    X(cuMemcpyDtoHAsync, on_work_3) \
    X(cuMemcpyDtoD, on_work) \
    X(cuMemcpyDtoDAsync, on_work_3) \
    X(cuMemcpyDtoA, on_work) \
    X(cuMemcpyAtoD, on_work) \
    X(cuMemcpyHtoA, on_work) \
    X(cuMemcpyHtoAAsync, on_work_4) \
    X(cuMemcpyAtoH, on_work) \
    X(cuMemcpyAtoHAsync, on_work_4) \
    X(cuMemcpyAtoA, on_work) \
    X(cuMemcpy2D, on_work) \
    X(cuMemcpy2DUnaligned, on_work) \
    X(cuMemcpy2DAsync, on_work_1) \
    X(cuMemcpy3D, on_work) \
    X(cuMemcpy3DAsync, on_work_1) \
    X(cuMemcpy3DPeer, on_work) \
    X(cuMemcpy3DPeerAsync, on_work_1) \
    X(cuMemcpyBatchAsync, on_work) \
    X(cuMemcpy3DBatchAsync, on_work) \
    X(cuMemcpyWithAttributesAsync, on_work) \
    X(cuMemcpy3DWithAttributesAsync, on_work) \
    /* memsets */ \
    X(cuMemsetD8, on_work) \
    X(cuMemsetD8Async, on_work_3) \
    X(cuMemsetD16, on_work) \
    X(cuMemsetD16Async, on_work_3) \
    X(cuMemsetD32, on_work) \
    X(cuMemsetD32Async, on_work_3) \
    X(cuMemsetD2D8, on_work) \
    X(cuMemsetD2D8Async, on_work_5) \
    X(cuMemsetD2D16, on_work) \
    X(cuMemsetD2D16Async, on_work_5) \
    X(cuMemsetD2D32, on_work) \
    X(cuMemsetD2D32Async, on_work_5) \
    /* managed memory on its way, and decompression */ \
    X(cuMemPrefetchAsync, on_work) \
    X(cuMemPrefetchBatchAsync, on_work) \
    X(cuMemDiscardBatchAsync, on_work) \
    X(cuMemDiscardAndPrefetchBatchAsync, on_work) \
    X(cuMemBatchDecompressAsync, on_work) \
    /* where a program waits for its work */ \
    X(cuStreamSynchronize, on_sync) \
    X(cuEventSynchronize, on_sync) \
    X(cuCtxSynchronize, on_sync) \
    /* captures, and the ends of streams and contexts */ \
    X(cuStreamBeginCapture, on_capture_begin) \
    X(cuStreamBeginCaptureToGraph, on_capture_begin) \
    X(cuStreamBeginRecaptureToGraph, on_capture_begin) \
    X(cuStreamEndCapture, on_capture_end) \
    X(cuStreamDestroy, on_stream_gone) \
    X(cuCtxDestroy, on_context_gone) \
    X(cuGreenCtxDestroy, on_green_context_gone) \
    X(cuDevicePrimaryCtxRelease, on_primary_context_gone) \
    X(cuDevicePrimaryCtxReset, on_primary_context_gone) \
    /* memory */ \
    X(cuMemAlloc, on_alloc) \
    X(cuMemAllocPitch, on_alloc_pitch) \
    X(cuMemAllocManaged, on_alloc_managed) \
    X(cuMemCreate, on_mem_create) \
    X(cuMemAllocAsync, on_alloc_async) \
    X(cuMemAllocFromPoolAsync, on_alloc_from_pool) \
    X(cuArrayCreate, on_array_create) \
    X(cuArray3DCreate, on_array3d_create) \
    X(cuMipmappedArrayCreate, on_mipmapped_create) \
    X(cuMemFree, on_free) \
    X(cuMemFreeAsync, on_free_async) \
    X(cuMemRelease, on_mem_release) \
    X(cuMemRetainAllocationHandle, on_mem_retain) \
    X(cuMemImportFromShareableHandle, on_mem_retain) \
    X(cuMemMap, on_mem_map) \
    X(cuMemUnmap, on_mem_unmap) \
    X(cuMemPoolCreate, on_pool_create) \
    X(cuMemPoolDestroy, on_pool_destroy) \
    X(cuMemPoolTrimTo, on_pool_trim) \
    X(cuArrayDestroy, on_array_destroy) \
    X(cuMipmappedArrayDestroy, on_mipmapped_destroy) \
    X(cuMemGetInfo, on_mem_get_info) \
    X(cuDeviceTotalMem, on_total_mem) \
    X(nvmlDeviceGetMemoryInfo, on_nvml_memory_info) \
    X(nvmlDeviceGetMemoryInfo_v2, on_nvml_memory_info_v2)

/* X(name): all variants, as the driver exports them. A program linked with -lcuda binds these to the library. It never
 * asks for one that its own driver's headers did not have, so a name too many does no harm. */
#define LEGACY_AND(X, name, suffix) X(name) X(name##suffix)
#define PTDS(X, name) LEGACY_AND(X, name, _ptds)
#define PTSZ(X, name) LEGACY_AND(X, name, _ptsz)
#define V2(X, name) X(name) X(name##_v2)
#define V2_PTDS(X, name) X(name) X(name##_v2) X(name##_v2_ptds)
#define V2_PTSZ(X, name) X(name) X(name##_v2) X(name##_v2_ptsz)

#define EXPORTS(X) \
    V2(X, cuGetProcAddress) X(cuInit) \
    PTSZ(X, cuLaunchKernel) PTSZ(X, cuLaunchKernelEx) PTSZ(X, cuLaunchCooperativeKernel) \
    X(cuLaunchCooperativeKernelMultiDevice) X(cuLaunch) X(cuLaunchGrid) X(cuLaunchGridAsync) \
    PTSZ(X, cuGraphLaunch) PTSZ(X, cuGraphUpload) \
    PTDS(X, cuMemcpy) PTSZ(X, cuMemcpyAsync) PTDS(X, cuMemcpyPeer) PTSZ(X, cuMemcpyPeerAsync) \
    V2_PTDS(X, cuMemcpyHtoD) V2_PTSZ(X, cuMemcpyHtoDAsync) V2_PTDS(X, cuMemcpyDtoH) V2_PTSZ(X, cuMemcpyDtoHAsync) \
    V2_PTDS(X, cuMemcpyDtoD) V2_PTSZ(X, cuMemcpyDtoDAsync) V2_PTDS(X, cuMemcpyDtoA) V2_PTDS(X, cuMemcpyAtoD) \
    V2_PTDS(X, cuMemcpyHtoA) V2_PTSZ(X, cuMemcpyHtoAAsync) V2_PTDS(X, cuMemcpyAtoH) V2_PTSZ(X, cuMemcpyAtoHAsync) \
    V2_PTDS(X, cuMemcpyAtoA) V2_PTDS(X, cuMemcpy2D) V2_PTDS(X, cuMemcpy2DUnaligned) V2_PTSZ(X, cuMemcpy2DAsync) \
    V2_PTDS(X, cuMemcpy3D) V2_PTSZ(X, cuMemcpy3DAsync) PTDS(X, cuMemcpy3DPeer) PTSZ(X, cuMemcpy3DPeerAsync) \
    PTSZ(X, cuMemcpyBatchAsync) V2_PTSZ_ONLY(X, cuMemcpyBatchAsync) \
    PTSZ(X, cuMemcpy3DBatchAsync) V2_PTSZ_ONLY(X, cuMemcpy3DBatchAsync) \
    PTSZ(X, cuMemcpyWithAttributesAsync) PTSZ(X, cuMemcpy3DWithAttributesAsync) \
    V2_PTDS(X, cuMemsetD8) PTSZ(X, cuMemsetD8Async) V2_PTDS(X, cuMemsetD16) PTSZ(X, cuMemsetD16Async) \
    V2_PTDS(X, cuMemsetD32) PTSZ(X, cuMemsetD32Async) V2_PTDS(X, cuMemsetD2D8) PTSZ(X, cuMemsetD2D8Async) \
    V2_PTDS(X, cuMemsetD2D16) PTSZ(X, cuMemsetD2D16Async) V2_PTDS(X, cuMemsetD2D32) PTSZ(X, cuMemsetD2D32Async) \
    PTSZ(X, cuMemPrefetchAsync) V2_PTSZ_ONLY(X, cuMemPrefetchAsync) PTSZ(X, cuMemPrefetchBatchAsync) \
    PTSZ(X, cuMemDiscardBatchAsync) PTSZ(X, cuMemDiscardAndPrefetchBatchAsync) PTSZ(X, cuMemBatchDecompressAsync) \
    PTSZ(X, cuStreamSynchronize) X(cuEventSynchronize) V2(X, cuCtxSynchronize) \
    PTSZ(X, cuStreamBeginCapture) V2_PTSZ_ONLY(X, cuStreamBeginCapture) PTSZ(X, cuStreamBeginCaptureToGraph) \
    PTSZ(X, cuStreamBeginRecaptureToGraph) PTSZ(X, cuStreamEndCapture) V2(X, cuStreamDestroy) \
    V2(X, cuCtxDestroy) X(cuGreenCtxDestroy) V2(X, cuDevicePrimaryCtxRelease) V2(X, cuDevicePrimaryCtxReset) \
    V2(X, cuMemAlloc) V2(X, cuMemAllocPitch) X(cuMemAllocManaged) X(cuMemCreate) \
    PTSZ(X, cuMemAllocAsync) PTSZ(X, cuMemAllocFromPoolAsync) V2(X, cuArrayCreate) V2(X, cuArray3DCreate) \
    X(cuMipmappedArrayCreate) V2(X, cuMemFree) PTSZ(X, cuMemFreeAsync) X(cuMemRelease) \
    X(cuMemRetainAllocationHandle) X(cuMemImportFromShareableHandle) X(cuMemMap) X(cuMemUnmap) \
    X(cuMemPoolCreate) X(cuMemPoolDestroy) X(cuMemPoolTrimTo) X(cuArrayDestroy) \
    X(cuMipmappedArrayDestroy) V2(X, cuMemGetInfo) V2(X, cuDeviceTotalMem) \
    V2(X, nvmlDeviceGetMemoryInfo)
#define V2_PTSZ_ONLY(X, name) X(name##_v2) X(name##_v2_ptsz)

#endif
