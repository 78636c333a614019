/* The arena: who has the turn on which GPU, for all sharing jobs of one ledger. A file beside the job files, which the library
 * makes. The same layout is in src/slicer/share/arena.py; a test compares them. All numbers are in the machine's own
 * order; times are CLOCK_MONOTONIC in nanoseconds. It changes under the lock on LOCK_BYTE, except where a field says
 * otherwise. A row of `processes` is free if its byte is not locked, whatever it says; one of `jobs`, if no living process
 * names it. Nothing in it is trusted: every index read from it is checked, and no wait depends on it alone. */
#ifndef SLICER_SHARE_ARENA_H
#define SLICER_SHARE_ARENA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "job_file.h"

#define ARENA_NAME "arena-2" /* another layout gets another name */
#define ARENA_MAGIC UINT64_C(0x616e657261736c73)
#define ARENA_VERSION 2

enum { ARENA_GPUS = 64, ARENA_JOBS = 128, ARENA_PROCESSES = 512 };

/* What a job does: the lowest bits of arena_job.turn. */
enum {
    TURN_NONE = 0,     /* it wants nothing */
    TURN_WAITING = 1,  /* a thread of it waits at the gate */
    TURN_HAS = 2,      /* its processes may put work on its GPUs */
    TURN_YIELDS = 3,   /* it still has the turn, but starts no more work, and waits until what it started is done */
    TURN_STATE = 3,    /* the mask of these */
    TURN_WINDOWED = 4, /* others are there, of its priority or a higher one: keep little work in flight */
    TURN_EPOCH = 8     /* the number of the turn, counted up with each one, times this */
};

enum waited { WAITED_NOT, WAITED_BY_LOWER, WAITED_BY_EQUAL, WAITED_BY_HIGHER };

/* 128 bytes. */
struct arena_job {
    char id[JOB_ID_CHARS];      /*   0 as in the job's file */
    _Atomic uint32_t used;      /*  16 0: free */
    _Atomic int32_t priority;   /*  20 */
    _Atomic uint64_t gpus;      /*  24 bit N: row N of arena.gpus is one of the job's */
    _Atomic uint32_t mode;      /*  32 enum mode of share.h */
    _Atomic uint32_t quantum_us; /* 36 of its settings; 0: it takes no turns with jobs of its own priority */
    _Atomic uint32_t drain_us;  /*  40 of its settings */
    _Atomic uint32_t waited;    /*  44 enum waited: who waits for what it has */
    _Atomic uint64_t ticket;    /*  48 its place among the waiting of its priority */
    _Atomic uint64_t since_ns;  /*  56 when it began what it does now */
    _Atomic uint32_t turn;      /*  64 the state, TURN_WINDOWED, and the number of the turn */
    _Atomic uint32_t overtaken; /*  68 how many of its turns others ended before its work was done */
    _Atomic uint32_t overtaken_told; /* 72 of these, noted in the job's file */
    uint32_t reserved0;
    _Atomic uint64_t turns;     /*  80 how many it had */
    _Atomic uint64_t counted_ns; /* 88 up to when the current turn is counted in the job's file; 0: no process has joined
                                      it yet. Changed without the lock */
    _Atomic uint64_t had_ns;    /*  96 when the current turn began, or the last one */
    uint32_t reserved1;
    _Atomic uint32_t overtake_us; /* 108 so long a higher priority waits for the end of its work */
    _Atomic uint64_t reserved[2];
};

/* 64 bytes. */
struct arena_process {
    _Atomic uint32_t job;      /*  0 its row in arena.jobs, plus one; 0: free */
    _Atomic int32_t pid;       /*  4 as the process sees it */
    _Atomic uint32_t bell;     /*  8 a futex that its helper thread sleeps on: counted up when something is asked of it */
    uint32_t reserved0;
    _Atomic uint32_t call;     /* 16 a futex that its waiting threads sleep on: counted up when they should look again */
    _Atomic uint32_t wanting;  /* 20 how many of its threads wait */
    _Atomic uint32_t joined;   /* 24 the number of the turn that it puts work into; 0: none, or its work is done */
    _Atomic uint32_t generation; /* 28 0: it has the turn as it was given; N: it caught up with one of generation N-1 */
    _Atomic uint64_t joined_ns; /* 32 since when it puts work into that turn */
    _Atomic uint64_t awake_ns; /* 40 when its helper thread looked last; written without the lock */
    _Atomic uint64_t reserved[2];
};

struct arena {
    _Atomic uint64_t magic; /* 0: written last, when the file is complete */
    uint32_t version;       /* 8 */
    uint32_t size;          /* 12 of this struct, and of the file */
    uint32_t gpu_rows;      /* 16 */
    uint32_t job_rows;      /* 20 */
    uint32_t process_rows;  /* 24 */
    _Atomic uint32_t processes_used;  /* 28 rows from here on were never used */
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

/* -- whose turn it is (turns.c): touches nothing but the arena in memory: no file, no clock, no driver ---------------- */

/* Processes to be woken, by their rows: bits. */
struct rings {
    uint64_t bell[ARENA_PROCESSES / 64];
    uint64_t call[ARENA_PROCESSES / 64];
};

static inline unsigned turn_state(uint32_t turn) { return turn & TURN_STATE; }
static inline uint32_t turn_epoch(uint32_t turn) { return turn / TURN_EPOCH; }

/* The row of the job that a process's row names; -1: none. */
int turns_job_of(const struct arena_process *process);

/* The job wants a turn. It has none now, and does not wait yet. */
void turns_request(struct arena *arena, struct arena_job *job, uint64_t now);

/* The job gives the turn back as soon as its work is done. It has it now. */
void turns_ask_back(struct arena *arena, unsigned job, uint64_t now, struct rings *rings);

/* End what is over, ask back what others wait for, and give out what is free. Says how many nanoseconds later it should
 * be looked at again at the latest, while somebody waits. To be called under the arena's lock, after every change. */
uint64_t turns_settle(struct arena *arena, uint64_t now, struct rings *rings);


#endif
