/* The seams between the files of the cap: the job's file, the quota, what is held, and the handlers. */
#ifndef SLICER_SHARE_CAP_H
#define SLICER_SHARE_CAP_H

#include "share.h"

/* -- the job's file (job_file.c) --------------------------------------------------------------------------------- */

/* As job(), but takes no row: for a process that only asks how much memory there is. */
struct job_file *job_seen(void);

/* Does this job have a cap on this one of its GPUs? Its bytes in *limit. False for -1. */
bool job_limit(int gpu, uint64_t *limit);

/* What this process holds by its own count; it is written again where its row was lost. */
extern _Atomic uint64_t job_held[JOB_MAX_GPUS];

/* The lock on LOCK_BYTE, with bounded patience. False: it could not be had, and what follows runs without it. Makes
 * sure of the descriptor and the row first: the program may have closed the one, and so lost the other. */
bool job_lock(void);
void job_unlock(bool locked);

/* Does a process hold this row? True where that cannot be found out. */
bool job_row_is_live(unsigned row);

/* -- the quota (quota.c) ------------------------------------------------------------------------------------------ */

enum verdict {
    NO_CAP,      /* there is none on this GPU: nothing was charged */
    CHARGED,     /* and is to be credited */
    REFUSED,     /* it does not fit */
    NOT_COUNTED  /* there is a cap, but this process cannot charge; this was counted as `uncounted` */
};

/* Charge before the memory is asked for. Counts the refusal, but not the allocation. */
enum verdict quota_charge(int gpu, uint64_t bytes);
void quota_credit(int gpu, uint64_t bytes);

/* What the job uses of this GPU, in bytes: what its live processes were charged, and the overhead. */
uint64_t quota_used(int gpu);

/* Count what was charged, or could not be. */
void quota_count_allocation(void);
void quota_count_uncounted(void);

/* -- what this process holds (held.c) ------------------------------------------------------------------------------- */

enum kind {
    KIND_NONE,
    KIND_ADDRESS, /* cuMemAlloc and its kin; link: the context */
    KIND_POOLED,  /* cuMemAllocAsync; link: the pool's slot. Its key is an address too */
    KIND_ARRAY,   /* arrays and mipmapped arrays; link: the context */
    KIND_HANDLE,  /* of cuMemCreate; link: its block; bytes: how often it is to be released */
    KIND_MAPPING, /* of cuMemMap: an address; link: the block, 0: of memory that is not counted; bytes: its length */
    KIND_BLOCK    /* the memory behind handles and mappings; link: how many of them there are */
};

struct held {
    uint64_t key;
    uint64_t bytes;
    uint64_t link;
    int32_t gpu;
    uint32_t kind;
};

/* Remember it; false: there is no memory for that. A key that is known already is replaced. */
bool held_put(struct held what);
/* Forget it; false: it is not known. */
bool held_take(enum kind kind, uint64_t key, struct held *what);
/* A copy; false: it is not known. */
bool held_get(enum kind kind, uint64_t key, struct held *what);
/* Change `link` or `bytes` of what is known, at once. The new value in *value; false: it is not known. */
bool held_add_link(enum kind kind, uint64_t key, int change, uint64_t *value);
bool held_add_bytes(enum kind kind, uint64_t key, int change, uint64_t *value);
/* Forget all of one kind with this link, and give it back one after another; false: there is none left. */
bool held_take_linked(enum kind kind, uint64_t link, struct held *what);
void held_after_fork(void);

/* -- stream-ordered pools (pools.c) --------------------------------------------------------------------------------- */

/* Give back what the pools of this process keep on this GPU beyond what is in use. True: it was something. */
bool pools_trim(int gpu);
/* Forget an allocation: its bytes are credited unless its pool keeps them. */
void pools_free(const struct held *what);
void pools_after_fork(void);

/* -- memory.c: for the handlers in the files beside it ---------------------------------------------------------------- */

/* As quota_charge; but before it refuses, pools give back what they do not use. */
enum verdict charge(int gpu, uint64_t bytes);

/* Charge, call, remember what *a[0] then names, or take the charge back. `what` lacks only its key. */
long charged_call(void *real, long *a, struct held what);

/* Is this the first version of a function, with its 32-bit sizes and addresses? `name` without _v2. */
bool is_first_version(void *real, const char *name);

/* The calling thread's current context; 0: none. */
uint64_t context_current(void);

/* What lay in a context is free. With its pools where it was a device's primary one. */
void memory_context_gone(uint64_t context);

#endif
