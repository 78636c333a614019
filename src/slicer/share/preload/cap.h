/* The seams between the files of the cap: the job's file, the quota, what is held, and the handlers. */
#ifndef SLICER_SHARE_CAP_H
#define SLICER_SHARE_CAP_H

#include "share.h"

/* -- the job's file (job_file.c, job_gpu.c) ------------------------------------------------------------------------ */

struct job_file *job_seen(void); /* like job(), but takes no row: for a process that only asks how much memory there is */
const struct job_file *job_said(void); /* a copy of slicer's part, up to `overhead`; NULL: there is no file */
void job_after_fork(void);       /* in the child */
int job_row_now(void);           /* like job_row(), but takes none */
bool job_row_is_live(unsigned row);
bool job_limit(int gpu, uint64_t *limit); /* Whether the job has a cap on this one of its GPUs; false for -1 */
int job_gpu_of(const struct job_file *file, const char *uuid); /* as NVML writes it; -1: none */

/* The file's lock, with bounded patience. It also keeps other threads of this process from charging. False: it was not
 * available, and the caller goes on without it. */
bool job_lock(void);
void job_unlock(bool locked);

enum verdict {
    NO_CAP,      /* there is no cap on this GPU: nothing was charged */
    CHARGED,     /* charged, and to be credited later */
    REFUSED,     /* it does not fit */
    NOT_COUNTED  /* there is a cap, but this process cannot charge */
};

/* Charge before the memory is requested. Counts nothing. (quota.c) */
enum verdict quota_charge(int gpu, uint64_t bytes);
void quota_credit(int gpu, uint64_t bytes);
/* Charge memory that is already in use, whether it fits or not. */
void quota_overdraw(int gpu, uint64_t bytes);

/* The bytes that the job uses on this GPU: charges of its live processes, and the overhead. */
uint64_t quota_used(int gpu);

/* Count the result of an allocation: ALLOCATIONS, REFUSALS, or UNCOUNTED. */
void quota_count(size_t counter);
#define ALLOCATIONS offsetof(struct job_counters, allocations)
#define REFUSALS offsetof(struct job_counters, refused)
#define UNCOUNTED offsetof(struct job_counters, uncounted)

enum kind {
    KIND_NONE,
    KIND_ADDRESS, /* cuMemAlloc and similar */
    KIND_HANDLE,  /* from cuMemCreate; count: the number of releases that it needs */
    KIND_MAPPING, /* of cuMemMap: an address; bytes: its length */
    KIND_BLOCK    /* the memory behind handles and mappings; count: the number of these */
};

enum { GPU_IS_HOST = -2 };

struct held {
    uint64_t key;
    uint64_t bytes;
    uint64_t link; /* for an address: its context; for a handle or mapping: the key of its block, 0: none */
    uint32_t count;
    uint32_t kind;
    int gpu;
};

/* Remember what this process holds (held.c). `old`: the previous entry of this key, or KIND_NONE. False: out of memory. */
bool held_put(struct held what, struct held *old);
/* Forget it. False: it is unknown. */
bool held_take(enum kind kind, uint64_t key, struct held *what);
/* Change its count, and forget it if that becomes 0; `what`: the entry afterwards. False: it is unknown. */
bool held_add(enum kind kind, uint64_t key, int change, struct held *what);
/* Forget an address of this context, and return it; *from is 0 at first. False: there is none. */
bool held_take_of(uint64_t context, size_t *from, struct held *what);

bool pools_trim(int gpu); /* pools.c: release unused memory of pools on this GPU. True: there was some */
void pools_synced(void);  /* the program has waited for work: pools may have released memory */
void pools_gone(int gpu); /* all pools on this GPU are gone */

bool is_capped(void); /* on any GPU. Everything from here on is in memory.c */

/* Like quota_charge, but before it refuses, pools release unused memory. Counts the refusal. */
enum verdict charge(int gpu, uint64_t bytes);

/* Charge, call, and `keep` (remember) what *a[0] then names; or undo the charge. `what` lacks only its key. */
long charged_call(void *real, long *a, struct held what, void (*keep)(struct held));
long uncounted_call(void *real, long *a); /* for allocations that cannot be charged */
long elsewhere_call(void *real, long *a); /* on a GPU that is not the job's */
long free_call(void *real, long *a, enum kind kind); /* frees a[0], and credits it */
void say_not_counted(void); /* once, and count it */

void remember(struct held what);         /* if that fails, it is credited */
void forgotten(const struct held *what); /* credit it */
void memory_gone(uint64_t context);      /* all memory in this context is free */

/* The job's GPU that CUmemAllocationProp or CUmemPoolProps name; -1: none of them; GPU_IS_HOST. (vmm.c) */
int gpu_of_properties(const void *properties);

static inline uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

#endif
