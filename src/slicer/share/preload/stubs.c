/* Until the files of the cap are here: what they define, calling through. Weak, so theirs win. */
#include "share.h"

#define CALL_THROUGH(name) \
    __attribute__((weak)) long name(void *real, long *a) { return call(real, a); }

CALL_THROUGH(on_init) CALL_THROUGH(on_alloc) CALL_THROUGH(on_alloc_pitch) CALL_THROUGH(on_alloc_managed)
CALL_THROUGH(on_mem_create) CALL_THROUGH(on_alloc_async) CALL_THROUGH(on_alloc_from_pool)
CALL_THROUGH(on_array_create) CALL_THROUGH(on_array3d_create) CALL_THROUGH(on_mipmapped_create)
CALL_THROUGH(on_free) CALL_THROUGH(on_free_async) CALL_THROUGH(on_mem_release) CALL_THROUGH(on_array_destroy)
CALL_THROUGH(on_mipmapped_destroy) CALL_THROUGH(on_mem_get_info) CALL_THROUGH(on_total_mem)
CALL_THROUGH(on_nvml_memory_info) CALL_THROUGH(on_nvml_memory_info_v2)

__attribute__((weak)) struct job_file *job(void) { return NULL; }
__attribute__((weak)) int job_row(void) { return -1; }
__attribute__((weak)) int job_gpu(int ordinal) { (void)ordinal; return -1; }
__attribute__((weak)) int job_gpu_current(void) { return -1; }
__attribute__((weak)) void job_after_fork(void) {}
