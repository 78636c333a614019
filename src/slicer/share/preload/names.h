/* The hooked functions by base name, and the names that linked programs bind. For names.c, exports.c. */
#ifndef SLICER_SHARE_NAMES_H
#define SLICER_SHARE_NAMES_H

/* X(base name, handler, variants). A name with _v2 means only that version: the first one has 32-bit addresses and
 * sizes, and passes. The name of a work handler says where its stream is: on_work_3 takes argument 3 (from 0),
 * on_work_config finds it in a CUlaunchConfig, on_work has none, or one whose place differs between versions.
 *
 * Left out on purpose: cuStreamWaitValue*, cuStreamWriteValue*, cuStreamBatchMemOp*, cuLaunchHostFunc and events. Other
 * work waits for these, so if one waited for a turn, it could keep a turn from ending. */
#define HOOKS(X) \
    X(cuGetProcAddress, on_get_proc_address, V2) \
    X(cuInit, on_init, ONE) \
    /* launches and graphs */ \
    X(cuLaunchKernel, on_work_8, PTSZ) \
    X(cuLaunchKernelEx, on_work_config, PTSZ) \
    X(cuLaunchCooperativeKernel, on_work_8, PTSZ) \
    X(cuLaunchCooperativeKernelMultiDevice, on_work, ONE) \
    X(cuGraphLaunch, on_work_1, PTSZ) \
    X(cuGraphUpload, on_work_1, PTSZ) \
    /* copies */ \
    X(cuMemcpy, on_work, PTDS) \
    X(cuMemcpyAsync, on_work_3, PTSZ) \
    X(cuMemcpyPeer, on_work, PTDS) \
    X(cuMemcpyPeerAsync, on_work_5, PTSZ) \
    X(cuMemcpyHtoD, on_copy_in, V2_PTDS) \
    X(cuMemcpyHtoDAsync, on_copy_in_async, V2_PTSZ) \
    X(cuMemcpyDtoH, on_copy_out, V2_PTDS) \
    X(cuMemcpyDtoHAsync, on_copy_out_async, V2_PTSZ) \
    X(cuMemcpyDtoD, on_work, V2_PTDS) \
    X(cuMemcpyDtoDAsync, on_work_3, V2_PTSZ) \
    X(cuMemcpyDtoA, on_work, V2_PTDS) \
    X(cuMemcpyAtoD, on_work, V2_PTDS) \
    X(cuMemcpyHtoA, on_work, V2_PTDS) \
    X(cuMemcpyHtoAAsync, on_work_4, V2_PTSZ) \
    X(cuMemcpyAtoH, on_work, V2_PTDS) \
    X(cuMemcpyAtoHAsync, on_work_4, V2_PTSZ) \
    X(cuMemcpyAtoA, on_work, V2_PTDS) \
    X(cuMemcpy2D, on_work, V2_PTDS) \
    X(cuMemcpy2DUnaligned, on_work, V2_PTDS) \
    X(cuMemcpy2DAsync, on_work_1, V2_PTSZ) \
    X(cuMemcpy3D, on_work, V2_PTDS) \
    X(cuMemcpy3DAsync, on_work_1, V2_PTSZ) \
    X(cuMemcpy3DPeer, on_work, PTDS) \
    X(cuMemcpy3DPeerAsync, on_work_1, PTSZ) \
    X(cuMemcpyBatchAsync, on_work, ALL) \
    X(cuMemcpy3DBatchAsync, on_work, ALL) \
    X(cuMemcpyWithAttributesAsync, on_work, PTSZ) \
    X(cuMemcpy3DWithAttributesAsync, on_work, PTSZ) \
    /* memsets */ \
    X(cuMemsetD8, on_work, V2_PTDS) \
    X(cuMemsetD8Async, on_work_3, PTSZ) \
    X(cuMemsetD16, on_work, V2_PTDS) \
    X(cuMemsetD16Async, on_work_3, PTSZ) \
    X(cuMemsetD32, on_work, V2_PTDS) \
    X(cuMemsetD32Async, on_work_3, PTSZ) \
    X(cuMemsetD2D8, on_work, V2_PTDS) \
    X(cuMemsetD2D8Async, on_work_5, PTSZ) \
    X(cuMemsetD2D16, on_work, V2_PTDS) \
    X(cuMemsetD2D16Async, on_work_5, PTSZ) \
    X(cuMemsetD2D32, on_work, V2_PTDS) \
    X(cuMemsetD2D32Async, on_work_5, PTSZ) \
    /* managed memory on its way, and decompression */ \
    X(cuMemPrefetchAsync, on_work, ALL) \
    X(cuMemPrefetchBatchAsync, on_work, PTSZ) \
    X(cuMemDiscardBatchAsync, on_work, PTSZ) \
    X(cuMemDiscardAndPrefetchBatchAsync, on_work, PTSZ) \
    X(cuMemBatchDecompressAsync, on_work, PTSZ) \
    /* where a program waits for its work */ \
    X(cuStreamSynchronize, on_sync, PTSZ) \
    X(cuEventSynchronize, on_sync, ONE) \
    X(cuCtxSynchronize, on_sync, V2) \
    /* captures, and the ends of streams and contexts */ \
    X(cuStreamBeginCapture, on_capture_begin, ALL) \
    X(cuStreamBeginCaptureToGraph, on_capture_begin, PTSZ) \
    X(cuStreamBeginRecaptureToGraph, on_capture_begin, PTSZ) \
    X(cuStreamEndCapture, on_capture_end, PTSZ) \
    X(cuStreamDestroy, on_stream_gone, V2) \
    X(cuCtxDestroy, on_context_gone, V2) \
    X(cuGreenCtxDestroy, on_green_context_gone, ONE) \
    X(cuDevicePrimaryCtxRelease, on_primary_context_gone, V2) \
    X(cuDevicePrimaryCtxReset, on_primary_context_gone, V2) \
    /* memory */ \
    X(cuMemAlloc_v2, on_alloc, ONE) \
    X(cuMemAllocPitch_v2, on_alloc_pitch, ONE) \
    X(cuMemAllocManaged, on_alloc, ONE) \
    X(cuMemCreate, on_mem_create, ONE) \
    X(cuMemAllocAsync, on_alloc_async, PTSZ) \
    X(cuMemAllocFromPoolAsync, on_alloc_from_pool, PTSZ) \
    X(cuArrayCreate, on_uncounted, V2) \
    X(cuArray3DCreate, on_uncounted, V2) \
    X(cuMipmappedArrayCreate, on_uncounted, ONE) \
    X(cuMemFree_v2, on_free, ONE) \
    X(cuMemFreeAsync, on_free, PTSZ) \
    X(cuMemRelease, on_mem_release, ONE) \
    X(cuMemRetainAllocationHandle, on_mem_retain, ONE) \
    X(cuMemImportFromShareableHandle, on_mem_retain, ONE) \
    X(cuMemMap, on_mem_map, ONE) \
    X(cuMemUnmap, on_mem_unmap, ONE) \
    X(cuMemPoolCreate, on_pool_create, ONE) \
    X(cuMemPoolDestroy, on_pool_destroy, ONE) \
    X(cuMemGetInfo_v2, on_mem_get_info, ONE) \
    X(cuDeviceTotalMem_v2, on_total_mem, ONE) \
    X(nvmlDeviceGetMemoryInfo, on_nvml_memory_info, ONE) \
    X(nvmlDeviceGetMemoryInfo_v2, on_nvml_memory_info_v2, ONE)

/* The variants that the driver exports. A program linked with -lcuda binds these to the library. It never asks for a
 * name that its own driver's headers did not have, so a superfluous name does no harm. */
#define ONE(X, name) X(name)
#define PTDS(X, name) X(name) X(name##_ptds)
#define PTSZ(X, name) X(name) X(name##_ptsz)
#define V2(X, name) X(name) X(name##_v2)
#define V2_PTDS(X, name) X(name) X(name##_v2) X(name##_v2_ptds)
#define V2_PTSZ(X, name) X(name) X(name##_v2) X(name##_v2_ptsz)
#define ALL(X, name) PTSZ(X, name) X(name##_v2) X(name##_v2_ptsz)

#endif
