/* The seams between the files of the lock: the gate, its helper thread, the arena, contexts and captures. */
#ifndef SLICER_SHARE_GATE_H
#define SLICER_SHARE_GATE_H

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arena.h"
#include "share.h"

enum { NS_A_US = 1000, NS_A_MS = 1000000, NS_A_SECOND = 1000000000 };

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_A_SECOND + (uint64_t)now.tv_nsec;
}

static inline struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_A_SECOND), .tv_nsec = (long)(ns % NS_A_SECOND)};
}

/* A system call, because nanosleep(3) is a cancellation point, and this runs inside the program's call. */
static inline void sleep_ns(uint64_t ns)
{
    struct timespec time = timespec_of(ns);
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, NULL);
}

static inline void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    struct timespec time = timespec_of(ns);
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &time, NULL, 0);
}

static inline void futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

/* -- the arena (arena.c): this process's place in it --------------------------------------------------------------- */

/* Opens the arena and takes a row, at the first call. If the result is WITHOUT or NOT_YET, work passes. */
enum attached { NOT_YET, ATTACHED, WITHOUT };
enum attached arena_attach(void);

/* The arena's lock, if the row is still this process's. False: the caller skips what needs it. */
bool arena_lock(struct rings *rings);
/* Decide again whose turn it is, unlock, and wake those concerned. Returns the longest time to sleep. */
uint64_t arena_unlock(struct rings *rings);
/* Check for dead processes of all jobs (0), or of those with these GPUs. Under the lock. */
void arena_reap(uint64_t gpus);

extern struct file arena_file;
struct arena *arena_mapped(void);
struct arena_job *arena_job(void);
unsigned arena_job_row(void);
struct arena_process *arena_process(void);

/* -- the gate (gate.c) --------------------------------------------------------------------------------------------- */

/* While the gate is closed, no thread starts more work in its job's turn. It opens by itself after the drain limit. */
void gate_close(void);
void gate_open(void);
bool gate_is_closed(void);

unsigned gate_syncing(void); /* the number of threads in a cu…Synchronize call of the program */

/* The calls that start work in the turn. */
void gate_enter(void);       /* count one more */
bool gate_is_empty(void);    /* none is in progress */
uint32_t gate_started(void); /* the number of those that have ended */

bool mode_gives_back(void); /* Does this mode give the turn back by itself (modes.c)? If so: */
void mode_after_work(void); /* a piece of work was started */
void mode_at_sync(void);    /* the program has waited for its work */
bool mode_is_over(uint64_t idle_ns); /* does the turn have to be given back while others wait for it? */

/* -- the turn, as this process sees it (turn.c) -------------------------------------------------------------------- */

struct context;
bool turn_is_ours(void); /* as far as this process knows; two loads */
bool turn_is_windowed(void);
uint64_t turn_joined_ns(void);
bool turn_wait(const struct context *context); /* True: in the turn, as by gate_enter. False: work passes without a turn */
bool turn_leave(void); /* once the work is done. False: not now (a capture, a busy arena, the program's end) */
void turn_tell(void);  /* record in the job's file how long the turn has lasted, and how many of them others ended */
void turn_move(void);  /* the arena's file was removed, and others have created a new one: use that */

/* -- contexts (contexts.c) ----------------------------------------------------------------------------------------- */

bool contexts_can_be_synced(void); /* by this driver */
struct context *context_note(void); /* the thread's current context, marked as having work in it; NULL: there is none */
bool contexts_sync(void); /* Wait until all work of this process is done. False: not now */

/* Has another context than this been synchronising for longer than that? */
bool contexts_wait_elsewhere(const struct context *context, uint64_t ns);

/* Wait until the work before the last such call is done: about this long, and no longer than `most`. Later work stays in
 * flight. One thread at a time. False: not now. */
bool context_pace(struct context *context, uintptr_t stream, uint64_t about_ns, uint64_t most_ns);

bool capture_is_open(void);           /* anywhere in this process (capture.c) */
bool capture_is_on(uintptr_t stream); /* asks the driver */

/* Between these, no capture begins. False: one is open, and nothing may be synchronised. */
bool capture_hold(void);
void capture_release(void);
/* Between these, nothing is synchronised; a current synchronisation is waited for, within limits. At the program's end
 * this begins for good, because the driver is about to end. */
void capture_begin(void);
void capture_end(void);

bool helper_start(void); /* start the thread (helper.c), once; false: it cannot be started */
void helper_ring(void);

#endif
