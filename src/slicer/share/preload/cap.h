/* The seams between the files of the cap: the job's file, the quota, what is held, and the handlers. */
#ifndef SLICER_SHARE_CAP_H
#define SLICER_SHARE_CAP_H

#include "share.h"

/* -- the job's file (job_file.c, job_gpu.c) ------------------------------------------------------------------------ */

struct job_file *job_seen(void); /* as job(), but takes no row: for a process that only asks how much memory there is */
const struct job_file *job_said(void); /* a copy of what slicer said, up to `overhead`; NULL: there is no file */
void job_after_fork(void);       /* in the child */
int job_row_now(void);           /* as job_row(), but takes none */
bool job_row_is_live(unsigned row);
bool job_limit(int gpu, uint64_t *limit); /* has the job a cap on this one of its GPUs? False for -1 */
int job_gpu_of(const struct job_file *file, const char *uuid); /* as NVML writes it; -1: none */

/* The file's lock, with bounded patience; and no other thread of this process charges meanwhile. False: it could not be
 * had, and what follows runs without it. */
bool job_lock(void);
void job_unlock(bool locked);

enum verdict {
    NO_CAP,      /* there is none on this GPU: nothing was charged */
    CHARGED,     /* and is to be credited */
    REFUSED,     /* it does not fit */
    NOT_COUNTED  /* there is a cap, but this process cannot charge */
};

/* Charge before the memory is asked for. Counts nothing. (quota.c) */
enum verdict quota_charge(int gpu, uint64_t bytes);
void quota_credit(int gpu, uint64_t bytes);
/* Charge what is in use already, whether it fits or not. */
void quota_overdraw(int gpu, uint64_t bytes);

/* What the job uses of this GPU, in bytes: what its live processes were charged, and the overhead. */
uint64_t quota_used(int gpu);

/* Count what became of an allocation: ALLOCATIONS, REFUSALS, or UNCOUNTED. */
void quota_count(size_t counter);
#define ALLOCATIONS offsetof(struct job_counters, allocations)
#define REFUSALS offsetof(struct job_counters, refused)
#define UNCOUNTED offsetof(struct job_counters, uncounted)

enum kind {
    KIND_NONE,
    KIND_ADDRESS, /* cuMemAlloc and its kin */
    KIND_HANDLE,  /* of cuMemCreate; count: how often it is to be released */
    KIND_MAPPING, /* of cuMemMap: an address; bytes: its length */
    KIND_BLOCK    /* the memory behind handles and mappings; count: how many of them there are */
};

enum { GPU_IS_HOST = -2 };

struct held {
    uint64_t key;
    uint64_t bytes;
    uint64_t link; /* of an address: its context; of a handle or mapping: the key of its block, 0: none */
    uint32_t count;
    uint32_t kind;
    int gpu;
};

/* What this process holds (held.c). Remember it. `old` is what had the same key, else of KIND_NONE. False: there is no memory for that. */
bool held_put(struct held what, struct held *old);
/* Forget it; false: it is not known. */
bool held_take(enum kind kind, uint64_t key, struct held *what);
/* Change its count, and forget it if that is 0 now; `what` as it is then. False: it is not known. */
bool held_add(enum kind kind, uint64_t key, int change, struct held *what);
/* Forget an address of this context, and say which; *from is 0 at first. False: there is none. */
bool held_take_of(uint64_t context, size_t *from, struct held *what);

bool pools_trim(int gpu); /* pools.c: give back what those on this GPU do not use. True: it was something */
void pools_synced(void);  /* the program has waited for work: they may have given something back */
void pools_gone(int gpu); /* all that was in them */

bool is_capped(void); /* on any GPU. All from here on is in memory.c */

/* As quota_charge; but before it refuses, pools give back what they do not use. Counts the refusal. */
enum verdict charge(int gpu, uint64_t bytes);

/* Charge, call, and `keep` (remember) what *a[0] then names; or take the charge back. `what` lacks only its key. */
long charged_call(void *real, long *a, struct held what, void (*keep)(struct held));
long uncounted_call(void *real, long *a); /* what cannot be charged */
long elsewhere_call(void *real, long *a); /* on a GPU that is not the job's */
long free_call(void *real, long *a, enum kind kind); /* frees a[0], and credits it */
void say_not_counted(void); /* once, and count it */

void remember(struct held what);         /* if that cannot be, it is credited */
void forgotten(const struct held *what); /* credit it */
void memory_gone(uint64_t context);      /* what lay in this context is free */

/* Which of the job's GPUs CUmemAllocationProp or CUmemPoolProps name; -1: none of them; GPU_IS_HOST. (vmm.c) */
int gpu_of_properties(const void *properties);

static inline uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

#endif
