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
#include "turns.h"

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

/* By system call, because nanosleep(3) lets a thread be cancelled, and this is in the midst of the program's call. */
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

/* Whether there is a lock for this job: opens the arena, and takes a row, at the first call. Where there is none, which
 * is said once, or none yet, because the arena is busy, work passes. */
enum attached { NOT_YET, ATTACHED, WITHOUT };
enum attached arena_attach(void);

/* The arena's lock, and a row that is still this process's; false: it could not be had, and what needs it is left out. */
bool arena_lock(struct rings *rings);

/* Decide anew whose turn it is, give the lock back, and wake who is to be woken. Says how long to sleep at the most. */
uint64_t arena_unlock(struct rings *rings);

/* Look who is dead, of all jobs (0), or of those with these GPUs. Under the lock. */
void arena_reap(uint64_t gpus);

/* Valid from the first successful arena_attach on; what they point to may be anybody's after a fork only. */
struct arena *arena_mapped(void);
struct arena_job *arena_job(void);
unsigned arena_job_row(void);
struct arena_process *arena_process(void);

void arena_after_fork(void);

/* -- the gate (gate.c) --------------------------------------------------------------------------------------------- */

/* A thread's own place: so that threads do not slow each other down by writing to the same memory. */
struct seat {
    _Alignas(64) _Atomic uint32_t busy; /* it is in a call that starts work */
    _Atomic uint32_t taken;
    _Atomic uint64_t launched; /* how much it started */
};

/* What a thread knows of itself. */
struct self {
    struct seat *seat;
    int depth; /* of driver calls that this thread is in */
};
struct self *gate_self(void);

/* Is the lock in force here, as far as it is known yet? */
bool gate_is_on(void);

/* No thread of this process starts more work with a turn that its job has, until gate_open(), or until the limit of the
 * drain has passed. */
void gate_close(void);
void gate_open(void);
bool gate_is_closed(void);

unsigned gate_syncing(void); /* how many threads wait in a cu…Synchronize of the program's own */
uint64_t gate_synced_ns(uint64_t *launched); /* when one of these returned last, and what had been started by then */

/* -- seats (seats.c) --------------------------------------------------------------------------------------------------- */

void seats_prepare(void); /* once */
void seat_take(void);     /* for the calling thread, until it ends */
void seats_after_fork(void);

/* Is no thread in a call that starts work? And: wait until that is so. */
bool seats_are_empty(void);
void seats_wait_until_empty(void);

/* How much work this process started so far. */
uint64_t seats_launched(void);

/* -- the turn, as this process sees it (turn.c) -------------------------------------------------------------------- */

/* Does this process have a part in its job's turn, as it knows? Two loads. */
bool turn_is_ours(void);
bool turn_is_windowed(void);
uint64_t turn_joined_ns(void); /* since when */

/* Wait for a turn. True: the calling thread is in, counted in `busy`. False: it passes without one. */
struct context;
bool turn_wait(_Atomic uint32_t *busy, const struct context *context);

/* Give this process's part in the turn back, when its work is done. False: a capture is open, the arena is busy, or the
 * program ends. */
bool turn_leave(void);

/* Add to the job's counters how long the current turn lasts by now. */
void turn_count(void);

/* The same, and how many of its turns others ended. */
void turn_tell(void);
void turn_after_fork(void);

/* -- contexts (contexts.c) ----------------------------------------------------------------------------------------- */

/* The calling thread's current context, noted as one with work in it; NULL: it has none. */
struct context *context_note(void);
void context_launched(struct context *context);

/* How much work was started in this one; in the one with most. False: this process has one context only. */
bool context_counts(const struct context *context, uint64_t *here, uint64_t *most);

/* Does the driver have what that takes? */
bool contexts_can_be_synced(void);

/* Wait until all work of this process is done. False: not now, because a capture is open, or the program ends. */
bool contexts_sync(void);

/* Wait until what was started before the last such call is done: about so long, and no longer than `most`. What was
 * started since stays in flight, so that the GPU is not idle meanwhile. One thread at a time. False: not now. */
bool context_pace(struct context *context, uintptr_t stream, uint64_t about_ns, uint64_t most_ns);
void contexts_after_fork(void);

/* Stop calling the driver, at the program's end: it is about to go. */
void contexts_stop(void);

/* -- captures (capture.c) ------------------------------------------------------------------------------------------ */

bool capture_is_open(void);              /* somewhere in this process */
bool capture_is_on(uintptr_t stream);    /* asks the driver */

/* Between these, no capture begins. False: one is open, and nothing may be synchronised. */
bool capture_hold(void);
void capture_release(void);
void capture_forget(const void *context); /* and all captures in it */
void capture_after_fork(void);

/* -- the helper thread (helper.c) ---------------------------------------------------------------------------------- */

bool helper_start(void); /* once; false: there can be none */
void helper_ring(void);
void helper_after_fork(void);

#endif
