/* The interfaces between the files of the library. See README.md in this directory. */
#ifndef SLICER_SHARE_H
#define SLICER_SHARE_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "job_file.h"

#define EXPORTED __attribute__((visibility("default")))

enum { ARGUMENTS = 12 }; /* no hooked function of the driver has more, and all are integers or pointers */

/* The values of CUresult that the library returns or reads. */
enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_NOT_READY = 600
};

/* -- hooks (names.c) and their wrappers (pool.c) -------------------------------------------------------------------- */

/* Runs in place of a hooked function. `real` is the very pointer from the lookup, `a` the arguments. */
typedef long handler(void *real, long *a);

struct hook {
    const char *name; /* without _v2, _v3, _ptsz, _ptds */
    handler *handle;
    bool is_per_thread; /* in this variant, stream 0 is each thread's own */
};

/* The hook for a symbol of libcuda or libnvidia-ml, in any version; NULL: it is not hooked. */
const struct hook *hook_of(const char *symbol);
const struct hook *hook_of_asked(const char *symbol, bool is_per_thread); /* by cuGetProcAddress */

/* A function that calls hook->handle(real, arguments). The same pair gets the same one. `real` if the pool is full. */
void *wrapper_of(const struct hook *hook, void *real);

/* The shape of a wrapper: ARGUMENTS integers. */
#define WRAPPER_PARAMETERS \
    long a0, long a1, long a2, long a3, long a4, long a5, long a6, long a7, long a8, long a9, long a10, long a11
#define WRAPPER_ARGUMENTS a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11
typedef long wrapper(WRAPPER_PARAMETERS);

/* Calls a real function with all arguments. */
long call(void *real, long *a);

/* The driver's own function, never a wrapper; NULL if the driver is missing or lacks it. (lookup.c) */
void *driver(const char *symbol);

/* The same, looked up once. On the path of every launch. */
static inline void *driver_once(_Atomic(void *) *known, const char *symbol)
{
    void *real = atomic_load_explicit(known, memory_order_acquire);
    if (real == NULL && (real = driver(symbol)) != NULL)
        atomic_store_explicit(known, real, memory_order_release);
    return real;
}

/* -- the job (job_file.c, job_gpu.c) ------------------------------------------------------------------------------- */

struct job_file *job(void);   /* mapped, with a row for this process; NULL: there is none, which was reported once */
const char *job_path(void);   /* NULL: the environment does not name it */
int job_row(void);            /* of this process; -1: it has none */
int job_gpu(int ordinal);     /* the job's GPU for a CUDA ordinal of this process; -1: none of them */
int job_gpu_current(void);    /* the GPU of the thread's context */
int ordinal_current(void);    /* its ordinal; -1: there is no context */
void *context_of_thread(void);

/* Write one line to stderr (say.c). False: it cannot be written now, and is lost. */
bool say(const char *text);

/* Record a trouble in the job's file and, the first time in this process, say `text`. Calls job(). */
void trouble(uint32_t bit, const char *text);

enum mode { MODE_YIELD, MODE_LAUNCHES, MODE_TIME, MODE_EACH };

struct settings {
    enum mode mode;
    unsigned launches;      /* for MODE_LAUNCHES: sync and give the turn back after this many */
    unsigned hold_us;       /* for MODE_TIME: after this time */
    unsigned skip_syncs;    /* for these modes: keep the turn during this many first syncs */
    unsigned quantum_us;    /* how long a turn lasts while others of the same priority wait; 0: they take no turns */
    unsigned window_us;     /* about how much work a lower priority has in flight */
    unsigned overtake_us;   /* how long a higher priority waits for the end of a turn's work */
    unsigned drain_us;      /* how long all others wait */
};

const struct settings *settings(void); /* from the environment, read once */

/* -- handlers ---------------------------------------------------------------------------------------------------- */

handler on_get_proc_address; /* lookup.c */
handler on_init;             /* job_file.c: cuInit fails if a cap cannot be applied */
/* gate.c: launches, copies, …, by the place of their stream (names.h); cu*Synchronize */
handler on_work, on_work_1, on_work_3, on_work_4, on_work_5, on_work_8, on_work_config, on_sync;
handler on_copy_in, on_copy_in_async, on_copy_out, on_copy_out_async;
handler on_capture_begin, on_capture_end, on_stream_gone;                        /* capture.c */
handler on_context_gone, on_green_context_gone, on_primary_context_gone;         /* contexts.c */
handler on_alloc, on_alloc_pitch, on_uncounted, on_free;                         /* memory.c */
handler on_mem_create, on_mem_retain, on_mem_release, on_mem_map, on_mem_unmap;  /* vmm.c */
handler on_alloc_async, on_alloc_from_pool, on_pool_create, on_pool_destroy; /* pools.c */
handler on_mem_get_info, on_total_mem, on_nvml_memory_info, on_nvml_memory_info_v2; /* card.c */

/* -- passing ------------------------------------------------------------------------------------------------------ */

/* The hook in which the calling thread is; NULL: none. Calls from within it pass: a profiler's callback must not wait
 * with the driver's locks held, and a libcuda that passes calls on to another one must not be charged twice. */
extern __thread const struct hook *share_hook;

/* All of CUDA passes: this is the child of a process that had begun to use it. */
extern _Atomic bool share_is_off;

/* Runs in place of a hooked function. Keeps errno, and disables cancellation: the thread may hold a lock of ours. */
static inline long handled(const struct hook *hook, void *real, long *a)
{
    int before = errno, cancel;
    if (share_hook || (atomic_load_explicit(&share_is_off, memory_order_relaxed) && hook->name[0] == 'c'))
        return call(real, a);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    share_hook = hook;
    long result = hook->handle(real, a);
    share_hook = NULL;
    pthread_setcancelstate(cancel, NULL);
    errno = before;
    return result;
}

/* -- for tests (tests/process/share_faults.c; nothing without -DSLICER_SHARE_FAULTS) ------------------------------------------------ */

/* Kills, stops or waits here if SLICER_SHARE_FAULTS names this point ("gate-took:kill"). */
#ifdef SLICER_SHARE_FAULTS
void fault(const char *point);
#else
static inline void fault(const char *point) { (void)point; }
#endif

#endif
