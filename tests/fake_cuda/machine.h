/* What the processes on one machine share: the file FAKE_CUDA_SHARED. The fake NVML reads it, too. */
#ifndef FAKE_CUDA_MACHINE_H
#define FAKE_CUDA_MACHINE_H

#include <stdatomic.h>
#include <stdint.h>

enum { MACHINE_GPUS = 16, MACHINE_ROWS = 64, MACHINE_DEPTH = 1024, MACHINE_MEETINGS = 1024 };

/* Work in time slices: a process has one queue on each GPU. */
struct piece {
    int64_t from, to, left;
};
struct queue {
    uint64_t submitted, done;
    struct piece pieces[MACHINE_DEPTH];
};
struct engine {
    int64_t clock, slice_left, probed;
    int current;
};

/* A process. It holds an open-file-description lock on the byte with the number of its row. */
struct row {
    _Atomic int pid;
    _Atomic uint64_t used[MACHINE_GPUS];
    struct queue queues[MACHINE_GPUS];
};

/* Kernels that wait for each other. */
struct meeting {
    _Atomic uint64_t count;
    _Atomic int64_t latest;
};

struct shared {
    _Atomic uint64_t magic;
    struct row rows[MACHINE_ROWS];
    struct engine engines[MACHINE_GPUS];
    struct meeting meetings[MACHINE_MEETINGS];
};

#endif
