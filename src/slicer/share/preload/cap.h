/* The seams between the files of the cap: the job's file, the quota, what is held, and the handlers. */
#ifndef SLICER_SHARE_CAP_H
#define SLICER_SHARE_CAP_H

#include "share.h"

/* -- the job's file (job_file.c) --------------------------------------------------------------------------------- */

/* As job(), but takes no row: for a process that only asks how much memory there is. */
struct job_file *job_seen(void);

/* A copy of what slicer said before the start, up to `overhead`; NULL: there is no file. Safe at any time: the file
 * itself is touched only between job_hold or job_lock and job_unlock. */
const struct job_file *job_said(void);

/* Open what the environment names, if it is a job's file: a descriptor; -1, and why, and errno or 0. */
struct stat;
int job_open(const char **why, struct stat *status);

/* Does this job have a cap on this one of its GPUs? Its bytes in *limit. False for -1. */
bool job_limit(int gpu, uint64_t *limit);

/* Which of the job's GPUs has this UUID, as NVML writes it; -1: none. */
int job_gpu_of(const struct job_file *file, const char *uuid);
void job_gpu_after_fork(void);

/* -- its rows and locks (job_rows.c) -------------------------------------------------------------------------------- */

void job_rows_attached(struct job_file *file, int descriptor, const struct stat *status);
void job_rows_take(struct job_file *file);

/* As job_row(), but takes none. Between job_lock and job_unlock it is this one that may be asked. */
int job_row_now(void);
void job_rows_after_fork(void);

/* What this process holds by its own count; it is written again where its row was lost. */
extern _Atomic uint64_t job_held[JOB_MAX_GPUS];

/* The lock on LOCK_BYTE, with bounded patience. False: it could not be had, and what follows runs without it. Makes
 * sure first of the descriptor, which the program may have closed, and that the file was not cut short. */
bool job_lock(void);
void job_unlock(bool locked);

/* Only this process's part of it: no other thread of its charges or credits. Ends with job_unlock(false). */
void job_hold(void);

/* Does a process hold this row? True where that cannot be found out. */
bool job_row_is_live(unsigned row);

/* -- the quota (quota.c) ------------------------------------------------------------------------------------------ */

enum verdict {
    NO_CAP,      /* there is none on this GPU: nothing was charged */
    CHARGED,     /* and is to be credited */
    REFUSED,     /* it does not fit */
    NOT_COUNTED  /* there is a cap, but this process cannot charge */
};

/* Charge before the memory is asked for. Counts nothing. */
enum verdict quota_charge(int gpu, uint64_t bytes);
void quota_credit(int gpu, uint64_t bytes);

/* What the job uses of this GPU, in bytes: what its live processes were charged, and the overhead. */
uint64_t quota_used(int gpu);

/* Count what became of an allocation. */
void quota_count_allocation(void);
void quota_count_refused(void);
void quota_count_uncounted(void);

/* -- what this process holds (held.c) ------------------------------------------------------------------------------- */

enum kind {
    KIND_NONE,
    KIND_ADDRESS, /* cuMemAlloc, cuMemAllocAsync and their kin */
    KIND_ARRAY,   /* arrays and mipmapped arrays */
    KIND_HANDLE,  /* of cuMemCreate; count: how often it is to be released */
    KIND_MAPPING, /* of cuMemMap: an address; bytes: its length */
    KIND_BLOCK    /* the memory behind handles and mappings; count: how many of them there are */
};

enum { NO_POOL = -1 };

struct held {
    uint64_t key;
    uint64_t bytes;
    uint64_t link; /* of an address or array: its context; of a handle or mapping: the key of its block, 0: none */
    uint32_t count;
    uint32_t kind;
    int gpu;
    int pool; /* of an address: its place in pools.c */
};

/* Remember it. `old` is what had the same key, else of KIND_NONE. False: there is no memory for that. */
bool held_put(struct held what, struct held *old);
/* Forget it; false: it is not known. */
bool held_take(enum kind kind, uint64_t key, struct held *what);
/* A copy; false: it is not known. */
bool held_get(enum kind kind, uint64_t key, struct held *what);
/* Change its count, and forget it if that is 0 now; `what` as it is then. False: it is not known. */
bool held_add(enum kind kind, uint64_t key, int change, struct held *what);
/* Forget one with this link, and say which; *from is 0 at first. False: there is none. */
bool held_take_linked(enum kind kind, uint64_t link, size_t *from, struct held *what);
void held_after_fork(void);

/* -- stream-ordered pools (pools.c) --------------------------------------------------------------------------------- */

/* The link of an address in a pool, with the GPU's number: no context has such an address. */
#define POOLED (UINT64_C(1) << 63)

/* The pool's place among those that are known; NO_POOL: it is not. Its GPU in *gpu, as pools_made was told. */
int pools_find(uint64_t handle, int *gpu);
void pools_made(uint64_t handle, int gpu);
/* Another handle for the pool in this place; 0: it is destroyed, and what lives in it stays until it is freed. */
void pools_rename(int place, uint64_t handle);

/* Charge a pool what it does not keep already; *grown: how much that is. Its place in *place; NO_POOL: there are too
 * many pools, and nothing is charged. Counts the refusal. */
enum verdict pools_charge(uint64_t handle, int gpu, uint64_t bytes, int *place, uint64_t *grown);
/* Charge it what it holds and will keep. */
void pools_settle(int place);

/* Give back what the pools of this process keep on this GPU beyond what is in use. True: it was something. */
bool pools_trim(int gpu);
/* One of its allocations was freed: its bytes are credited, unless the pool keeps them. */
void pools_freed(const struct held *what);
/* All that was in this GPU's pools is gone. */
void pools_gone(int gpu);
void pools_after_fork(void);

/* -- memory.c: for the handlers in the files beside it ---------------------------------------------------------------- */

/* Does this job have a cap, on any GPU? */
bool is_capped(void);

/* As quota_charge; but before it refuses, pools give back what they do not use. Counts the refusal. */
enum verdict charge(int gpu, uint64_t bytes);

/* Charge, call, and `keep` (remember) what *a[0] then names; or take the charge back. `what` lacks only its key. */
long charged_call(void *real, long *a, struct held what, void (*keep)(struct held));

/* Remember what was charged, under its key. If that cannot be: credit it, and count it as not counted. */
void remember(struct held what);

/* Call a function that frees a[0], of this kind, and credit it. */
long free_call(void *real, long *a, enum kind kind);

/* Say once that there is memory that is not under the cap, and count an allocation as such. */
void say_not_counted(void);

/* Call, and count it if it succeeded, because it cannot be charged. */
long uncounted_call(void *real, long *a);

/* As uncounted_call, on a GPU that is not the job's. */
long elsewhere_call(void *real, long *a);

/* Credit what was forgotten. */
void forgotten(const struct held *what);

/* Is this the first version of a function, with its 32-bit sizes and addresses? `name` without _v2. */
struct versions {
    _Atomic(void *) first;
    _Atomic(void *) second;
};
bool is_first_version(void *real, const char *name, struct versions *known);

static inline uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* a * b, at most UINT64_MAX. */
uint64_t times(uint64_t a, uint64_t b);

/* For who hears of the end of a context: what lay in it is free. Of a device's primary one, the context is asked for
 * before that (0: there is none), and it is looked whether it is gone after it. */
void memory_context_gone(uint64_t context);
bool memory_primary_is_active(int ordinal);
uint64_t memory_primary_context(int ordinal);
void memory_primary_context_gone(int ordinal, uint64_t context);

#endif
