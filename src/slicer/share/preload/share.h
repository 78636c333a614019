/* The seams between the files of the library. See README.md beside this file. */
#ifndef SLICER_SHARE_H
#define SLICER_SHARE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "job_file.h"

#define EXPORTED __attribute__((visibility("default")))

enum { ARGUMENTS = 12 }; /* no hooked function of the driver has more, and none has one that is no integer or pointer */

/* CUresult, as far as the library returns or reads it. */
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_NOT_READY = 600
};

/* -- hooks (names.c): which functions are hooked, by their base name, and what is done in their place ------------ */

/* Runs in the place of a hooked function. `real` is the very pointer that the lookup gave, `a` the arguments. */
typedef long handler(void *real, long *a);

struct hook {
    const char *name; /* without _v2, _v3, _ptsz, _ptds */
    handler *handle;
};

/* The hook for a symbol of libcuda or libnvidia-ml, whatever its version; NULL: it is not hooked. */
const struct hook *hook_of(const char *symbol);

/* -- wrappers (pool.c) ------------------------------------------------------------------------------------------- */

/* A function that calls hook->handle(real, arguments). The same for the same pair. Where the pool is full: `real`,
 * after one warning. */
void *wrapper_of(const struct hook *hook, void *real);

/* Calls a real function with all arguments. */
long call(void *real, long *a);

/* -- lookup (lookup.c): dlsym, cuGetProcAddress, and the exported names -------------------------------------------- */

/* The driver's own function, never a wrapper; NULL if it has none of that name, or there is no driver here. */
void *driver(const char *symbol);

/* The same, looked up once. On the way of every launch. */
static inline void *driver_once(_Atomic(void *) *known, const char *symbol)
{
    void *real = atomic_load_explicit(known, memory_order_acquire);
    if (real == NULL && (real = driver(symbol)) != NULL)
        atomic_store_explicit(known, real, memory_order_release);
    return real;
}

/* -- the job (job_file.c) ---------------------------------------------------------------------------------------- */

/* The job's file, mapped when it is first asked for, with a row of this process; NULL: there is none to use, which was
 * said once. Safe in all threads. A forked child gets a row of its own when it first asks. */
struct job_file *job(void);

/* Where it is; NULL: the environment does not say. */
const char *job_path(void);

/* The number of this process's row; -1: it has none. */
int job_row(void);

/* Which of the job's GPUs a CUDA ordinal of this process is; -1: none of them. Raises nothing, calls the driver once
 * for each ordinal. */
int job_gpu(int ordinal);

/* Which of the job's GPUs the calling thread's current context is on; -1: none, or there is no context. */
int job_gpu_current(void);

/* The ordinal of the calling thread's current context; -1: there is none. And the context. */
int ordinal_current(void);
void *context_of_thread(void);

/* -- what the user should know (say.c) ------------------------------------------------------------------------------ */

/* One line on stderr. The caller sees to it that each thing is said once. */
void say(const char *text);

/* Note a trouble in the job's file; and the first time in this process, say `text` on stderr. Asks for job(): so not
 * to be called in there. */
void trouble(uint32_t bit, const char *text);

/* -- settings (settings.c): from the environment, read once -------------------------------------------------------- */

enum mode { MODE_YIELD, MODE_LAUNCHES, MODE_TIME, MODE_EACH };

struct settings {
    enum mode mode;
    unsigned launches;      /* of MODE_LAUNCHES: sync and give the turn back after so many */
    unsigned hold_us;       /* of MODE_TIME: after so long */
    unsigned skip_syncs;    /* keep the turn over the first so many syncs */
    unsigned quantum_us;    /* of MODE_YIELD: how long a turn lasts while others of the same priority wait */
    unsigned window_us;     /* of MODE_YIELD: about how much work a lower priority has in flight */
    unsigned drain_us;      /* how long a turn's work may take to be done before the turn is passed on all the same */
};

const struct settings *settings(void);

/* -- handlers ---------------------------------------------------------------------------------------------------- */

handler on_get_proc_address; /* lookup.c */
/* gate.c: launches, copies, …, by the place of their stream (names.h); cu*Synchronize */
handler on_work, on_work_1, on_work_3, on_work_4, on_work_5, on_work_8, on_work_config, on_sync;
handler on_capture_begin, on_capture_end, on_stream_gone;                        /* capture.c */
handler on_context_gone, on_green_context_gone, on_primary_context_gone;         /* contexts.c */
handler on_init;                                     /* job_file.c: cuInit fails where a cap was asked for and cannot be applied */
/* Allocations are charged before, and the charge taken back if they fail; frees are credited. */
handler on_alloc, on_alloc_pitch, on_alloc_managed, on_free;                                     /* memory.c */
handler on_mem_create, on_mem_retain, on_mem_release, on_mem_map, on_mem_unmap;                  /* vmm.c */
handler on_alloc_async, on_alloc_from_pool, on_free_async, on_pool_create, on_pool_destroy, on_pool_trim; /* ordered.c */
handler on_array_create, on_array3d_create, on_mipmapped_create, on_array_destroy, on_mipmapped_destroy; /* arrays.c */
handler on_mem_get_info, on_total_mem;  /* card.c: the cap in place of the card */
handler on_nvml_memory_info, on_nvml_memory_info_v2; /* nvml.c */

/* -- at fork ------------------------------------------------------------------------------------------------------ */

/* In the child: forget what is the parent's (its row, its turn, its helper thread), and close its descriptors. */
/* A mutex that a thread of the parent may have held is free. */
static inline void mutex_after_fork(pthread_mutex_t *mutex)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(mutex, &fresh, sizeof fresh);
}

void gate_after_fork(void);
void job_after_fork(void);

/* -- for tests (faults.c; nothing without -DSLICER_SHARE_FAULTS) ---------------------------------------------------- */

/* Kills, stops or waits here if SLICER_SHARE_FAULTS names this point ("gate-took:kill"). */
#ifdef SLICER_SHARE_FAULTS
void fault(const char *point);
#else
static inline void fault(const char *point) { (void)point; }
#endif

#endif
