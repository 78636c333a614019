/* The arena: who has the turn on which GPU, for all sharing jobs of one ledger. The library creates this file next to
 * the job files. The same layout is in src/slicer/share/arena.py; a test compares them. All numbers are in the machine's
 * byte order; times are CLOCK_MONOTONIC in nanoseconds. The arena changes only under the lock on LOCK_BYTE, unless a
 * field says otherwise. A row of `processes` is free if its byte is not locked, whatever it contains; a row of `jobs`,
 * if no living process names it. Nothing in it is trusted: every index is checked, and no wait depends on it alone. */
#ifndef SLICER_SHARE_ARENA_H
#define SLICER_SHARE_ARENA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "job_file.h"

#define ARENA_NAME "arena-2" /* each layout has its own name */
#define ARENA_MAGIC UINT64_C(0x616e657261736c73)
#define ARENA_VERSION 2

enum { ARENA_GPUS = 64, ARENA_JOBS = 128, ARENA_PROCESSES = 512 };

/* What a job is doing: the lowest bits of arena_job.turn. */
enum {
    TURN_NONE = 0,     /* it wants nothing */
    TURN_WAITING = 1,  /* one of its threads waits at the gate */
    TURN_HAS = 2,      /* its processes may put work on its GPUs */
    TURN_YIELDS = 3,   /* it still has the turn, but starts no more work, and waits until its work is done */
    TURN_STATE = 3,    /* the mask of these */
    TURN_WINDOWED = 4, /* there are others of its priority or a higher one: keep little work in flight */
    TURN_EPOCH = 8     /* the number of the turn, incremented with each turn, times this */
};

enum waited { WAITED_NOT, WAITED_BY_LOWER, WAITED_BY_EQUAL, WAITED_BY_HIGHER };

/* 128 bytes. */
struct arena_job {
    char id[JOB_ID_CHARS];      /*   0 as in the job's file */
    _Atomic uint32_t used;      /*  16 0: free */
    _Atomic int32_t priority;   /*  20 */
    _Atomic uint64_t gpus;      /*  24 bit N: row N of arena.gpus is one of the job's GPUs */
    _Atomic uint32_t mode;      /*  32 enum mode of share.h */
    _Atomic uint32_t quantum_us; /* 36 from its settings; 0: it takes no turns with jobs of its own priority */
    _Atomic uint32_t drain_us;  /*  40 from its settings */
    _Atomic uint32_t waited;    /*  44 enum waited: who waits for its GPUs */
    _Atomic uint64_t ticket;    /*  48 its place among the waiting jobs of its priority */
    _Atomic uint64_t since_ns;  /*  56 when it began its present state */
    _Atomic uint32_t turn;      /*  64 the state, TURN_WINDOWED, and the number of the turn */
    _Atomic uint32_t overtaken; /*  68 the number of its turns that others ended before its work was done */
    _Atomic uint32_t overtaken_told; /* 72 the number of these that is recorded in the job's file */
    uint32_t reserved0;
    _Atomic uint64_t turns;     /*  80 the number of turns that it had */
    _Atomic uint64_t counted_ns; /* 88 the time up to which the current turn is counted in the job's file; 0: no process
                                  * has joined it yet. Changed without the lock */
    _Atomic uint64_t had_ns;    /*  96 when the current turn began, or the last one */
    uint32_t reserved1;
    _Atomic uint32_t overtake_us; /* 108 how long a higher priority waits for the end of its work */
    _Atomic uint64_t reserved[2];
};

/* 64 bytes. */
struct arena_process {
    _Atomic uint32_t job;      /*  0 its row in arena.jobs, plus one; 0: free */
    _Atomic int32_t pid;       /*  4 as the process sees it */
    _Atomic uint32_t bell;     /*  8 a futex on which its helper thread sleeps: incremented when the helper has to act */
    uint32_t reserved0;
    _Atomic uint32_t call;     /* 16 a futex on which its waiting threads sleep: incremented when they should check again */
    _Atomic uint32_t wanting;  /* 20 the number of its threads that wait */
    _Atomic uint32_t joined;   /* 24 the number of the turn into which it puts work; 0: none, or its work is done */
    _Atomic uint32_t generation; /* 28 0: it has the turn as granted; N: it caught up with one of generation N-1 */
    _Atomic uint64_t joined_ns; /* 32 since when it has put work into that turn */
    _Atomic uint64_t awake_ns; /* 40 when its helper thread last checked; written without the lock */
    _Atomic uint64_t reserved[2];
};

struct arena {
    _Atomic uint64_t magic; /* 0: written last, when the file is complete */
    uint32_t version;       /* 8 */
    uint32_t size;          /* 12 of this struct, and of the file */
    uint32_t gpu_rows;      /* 16 */
    uint32_t job_rows;      /* 20 */
    uint32_t process_rows;  /* 24 */
    _Atomic uint32_t processes_used;  /* 28 later rows were never used */
    _Atomic uint64_t next_ticket;     /* 32 */
    uint64_t reserved[3];
    char gpus[ARENA_GPUS][JOB_UUID_CHARS]; /* 64 zeros: free; rows are never freed */
    struct arena_job jobs[ARENA_JOBS];
    struct arena_process processes[ARENA_PROCESSES];
};

_Static_assert(sizeof(struct arena_job) == 128 && offsetof(struct arena_job, turn) == 64, "as in arena.py");
_Static_assert(offsetof(struct arena_job, gpus) == 24 && offsetof(struct arena_job, ticket) == 48, "as in arena.py");
_Static_assert(offsetof(struct arena_job, turns) == 80 && offsetof(struct arena_job, had_ns) == 96, "as in arena.py");
_Static_assert(sizeof(struct arena_process) == 64 && offsetof(struct arena_process, joined_ns) == 32, "as in arena.py");
_Static_assert(offsetof(struct arena, gpus) == 64 && offsetof(struct arena, jobs) == 3136, "as in arena.py");
_Static_assert(offsetof(struct arena, processes) == 19520 && sizeof(struct arena) == 52288, "as in arena.py");

/* -- whose turn it is (turns.c): works only on the arena in memory: no file, no clock, no driver --------------------- */

/* Processes to wake, by their rows: bits. */
struct rings {
    uint64_t bell[ARENA_PROCESSES / 64];
    uint64_t call[ARENA_PROCESSES / 64];
};

static inline unsigned turn_state(uint32_t turn) { return turn & TURN_STATE; }
static inline uint32_t turn_epoch(uint32_t turn) { return turn / TURN_EPOCH; }

/* The row of the job that a process's row names; -1 if none. */
int turns_job_of(const struct arena_process *process);

/* Request a turn for a job that has none and does not wait yet. */
void turns_request(struct arena *arena, struct arena_job *job, uint64_t now);

/* Make the job give its turn back as soon as its work is done. */
void turns_ask_back(struct arena *arena, unsigned job, uint64_t now, struct rings *rings);

/* End turns that are over, ask back those that others wait for, and grant what is free. Returns the nanoseconds until
 * the latest next call, while somebody waits. Call it under the arena's lock, after every change. */
uint64_t turns_settle(struct arena *arena, uint64_t now, struct rings *rings);


#endif
