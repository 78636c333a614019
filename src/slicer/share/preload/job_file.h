/* The job's file, through which slicer and the library in the job's processes exchange data. The same layout is in
 * src/slicer/share/layout.py; a test compares them. All numbers are in the machine's byte order. See also cap.md.
 *
 * The environment names it: SLICER_SHARE_FILE is its absolute path, SLICER_SHARE what was requested. The latter decides
 * what to do if the file cannot be used: with "lock" the program runs without a lock; otherwise cuInit fails. */
#ifndef SLICER_SHARE_JOB_FILE_H
#define SLICER_SHARE_JOB_FILE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_FILE_MAGIC UINT64_C(0x726168736c73626a) /* "jblsshar" */
#define JOB_FILE_VERSION 1

enum {
    JOB_MAX_GPUS = 16,
    JOB_MAX_PROCESSES = 256,
    JOB_ID_CHARS = 16,  /* 12 hexadecimal digits, then zeros */
    JOB_UUID_CHARS = 48 /* "GPU-…", as NVML writes it, then zeros */
};

/* What is requested, in `wants`. */
enum { WANTS_LOCK = 1, WANTS_CAP = 2 };

/* Why something is not applied, in `troubles`: bits that the library sets and slicer reports in the outcome. */
enum {
    TROUBLE_NO_ARENA = 1,     /* the lock: the arena cannot be opened or is invalid */
    TROUBLE_NO_ROW = 2,       /* more processes than there are rows */
    TROUBLE_POOL_FULL = 4,    /* more pointers than wrappers: some functions pass through */
    TROUBLE_MPS = 8,          /* no lock, because MPS is running */
    TROUBLE_OTHER_GPU = 16,   /* work or memory on a GPU that is not the job's */
    TROUBLE_UNDRAINED = 32,   /* a turn was passed on before its work was done */
    TROUBLE_ARENA_BUSY = 64   /* the arena's lock was not available in time */
};

struct job_process {
    _Atomic int32_t pid; /* in the process's own pid namespace; 0: never used */
    uint32_t reserved;
    _Atomic uint64_t charged[JOB_MAX_GPUS]; /* bytes that it holds */
};

/* Written by the library, summed over the job's processes. They only grow. */
struct job_counters {
    _Atomic uint64_t gated;       /* launches, copies and the like that went through the gate */
    _Atomic uint64_t passed;      /* those among them without a turn: in a capture, or calls that cannot be gated */
    _Atomic uint64_t turns;       /* the job's turns */
    _Atomic uint64_t held_ns;     /* how long it had them, without the current one */
    _Atomic uint64_t waits;       /* how often one of its threads slept for a turn */
    _Atomic uint64_t waited_ns;   /* how long they slept, in total */
    _Atomic uint64_t longest_ns;  /* the longest of these waits */
    _Atomic uint64_t undrained;   /* turns that were passed on before the work was done */
    _Atomic uint64_t allocations; /* allocations that were charged */
    _Atomic uint64_t refused;     /* allocations that the cap refused */
    _Atomic uint64_t uncounted;   /* allocations that could not be counted and passed through */
    _Atomic uint64_t reserved[5];
};

struct job_file {
    /* written by slicer before the start */
    uint64_t magic;
    uint32_t version;
    uint32_t size; /* of this struct, and of the file */
    char job[JOB_ID_CHARS];
    uint32_t wants;
    int32_t priority; /* -100 … 100 */
    uint32_t gpu_count;
    uint32_t noted; /* for slicer itself. 1: it saw the job use more than its limit; 2: the driver also enforces the
                     * limit; 4: end such a job */
    char gpus[JOB_MAX_GPUS][JOB_UUID_CHARS]; /* the lease's GPUs, in its order */
    uint64_t limit[JOB_MAX_GPUS];            /* bytes; 0: no cap */
    /* written by slicer while the job runs */
    _Atomic uint64_t overhead[JOB_MAX_GPUS]; /* bytes in use that were not charged: CUDA contexts, as NVML saw them.
                                              * Before the first look it may be an estimate of the contexts */
    /* written by the library */
    _Atomic uint32_t troubles;
    _Atomic uint32_t rows; /* the number of rows of `processes` that were ever used */
    struct job_counters counters;
    _Atomic uint64_t peak[JOB_MAX_GPUS]; /* the highest number of bytes charged at once */
    struct job_process processes[JOB_MAX_PROCESSES];
};

enum { LOCK_BYTE = 1 << 20 };

#ifdef __cplusplus
#error "C only"
#endif
_Static_assert(sizeof(_Atomic uint64_t) == 8 && sizeof(_Atomic uint32_t) == 4, "atomics are plain words");
_Static_assert(offsetof(struct job_file, gpus) == 48, "as in layout.py");
_Static_assert(sizeof(struct job_process) == 8 + 8 * JOB_MAX_GPUS, "as in layout.py");

#endif
