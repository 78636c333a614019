/* The arena: who has the turn on which GPU, for all sharing jobs of one ledger.
 *
 * A file beside the job files, "arena-1", mapped by every process of every sharing job that uses CUDA, and read by
 * `slicer status` (src/slicer/share/arena.py has the same layout; a test compares them). The library makes it. All
 * numbers are in the machine's own order; times are CLOCK_MONOTONIC in nanoseconds.
 *
 * Who is alive is the kernel's to say. A process owns one row of `processes`, and holds an open-file-description lock
 * for writing on the byte of the file with the row's number. A row whose byte is not locked is free, whatever it says.
 * A row of `jobs` counts as long as a living process names it, and is free else. The byte ARENA_LOCK_BYTE is locked for
 * writing while anything is changed, except where a field says otherwise. A killed process leaves no lock behind.
 *
 * Nothing in the file is trusted: every index read from it is checked, and no wait depends on it alone. */
#ifndef SLICER_SHARE_ARENA_H
#define SLICER_SHARE_ARENA_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "job_file.h"

#define ARENA_NAME "arena-1" /* another layout gets another name */
#define ARENA_MAGIC UINT64_C(0x616e657261736c73)
#define ARENA_VERSION 1

enum { ARENA_GPUS = 64, ARENA_JOBS = 128, ARENA_PROCESSES = 512, ARENA_LOCK_BYTE = 1 << 20 };

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

/* How much work a job may have in flight: any, about a quarter of a quantum, about a window (of the settings). */
enum window { WINDOW_NONE, WINDOW_LONG, WINDOW_SHORT };

enum waited { WAITED_NOT, WAITED_BY_LOWER, WAITED_BY_EQUAL, WAITED_BY_HIGHER };

/* 128 bytes. */
struct arena_job {
    char id[JOB_ID_CHARS];      /*   0 as in the job's file */
    _Atomic uint32_t used;      /*  16 0: free */
    _Atomic int32_t priority;   /*  20 */
    _Atomic uint64_t gpus;      /*  24 bit N: row N of arena.gpus is one of the job's */
    _Atomic uint32_t mode;      /*  32 enum mode of share.h */
    _Atomic uint32_t quantum_us; /* 36 of its settings */
    _Atomic uint32_t drain_us;  /*  40 of its settings */
    _Atomic uint32_t waited;    /*  44 enum waited: who waits for what it has */
    _Atomic uint64_t ticket;    /*  48 its place among the waiting of its priority */
    _Atomic uint64_t since_ns;  /*  56 when it began what it does now */
    _Atomic uint32_t turn;      /*  64 the state, TURN_WINDOWED, and the number of the turn */
    _Atomic uint32_t overtaken; /*  68 how many of its turns others ended before its work was done */
    _Atomic uint32_t overtaken_told; /* 72 of these, noted in the job's file */
    _Atomic uint32_t last_us;   /*  76 how long its last turn was, if it gave it back early, with nothing to do; else 0 */
    _Atomic uint64_t turns;     /*  80 how many it had */
    _Atomic uint64_t counted_ns; /* 88 up to when the current turn is counted in the job's file; 0: no process has joined
                                      it yet. Changed without the lock */
    _Atomic uint64_t had_ns;    /*  96 when the current turn began, or the last one */
    _Atomic uint32_t window;    /* 104 enum window */
    uint32_t reserved0;
    _Atomic uint64_t reserved[2];
};

/* 64 bytes. */
struct arena_process {
    _Atomic uint32_t job;      /*  0 its row in arena.jobs, plus one; 0: free */
    _Atomic int32_t pid;       /*  4 as the process sees it */
    _Atomic uint32_t bell;     /*  8 a futex that its helper thread sleeps on: counted up when something is asked of it */
    _Atomic uint32_t heard;    /* 12 what `bell` was when the helper looked last; written without the lock */
    _Atomic uint32_t call;     /* 16 a futex that its waiting threads sleep on: counted up when they should look again */
    _Atomic uint32_t wanting;  /* 20 how many of its threads wait */
    _Atomic uint32_t joined;   /* 24 the number of the turn that it puts work into; 0: none, or its work is done */
    _Atomic uint32_t reserved0;
    _Atomic uint64_t launched; /* 32 how much work it started; written without the lock, at each yield */
    _Atomic uint64_t rung_ns;  /* 40 no later than `bell` was rung without being heard since */
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
_Static_assert(sizeof(struct arena_process) == 64 && offsetof(struct arena_process, launched) == 32, "as in arena.py");
_Static_assert(offsetof(struct arena, gpus) == 64 && offsetof(struct arena, jobs) == 3136, "as in arena.py");
_Static_assert(offsetof(struct arena, processes) == 19520 && sizeof(struct arena) == 52288, "as in arena.py");

#endif
