/* This process's rows in the arena, and the arena's lock. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "arena_file.h"
#include "gate.h"

enum {
    REST_MS = 1000, /* without the lock, after it could not be had */
    FORK_WAIT_S = 5
};

static pthread_mutex_t local = PTHREAD_MUTEX_INITIALIZER; /* an open file's lock does not keep threads apart */
static _Atomic(struct arena *) mapped;
static struct arena_job no_job; /* where there is none: nobody gives it a turn */
static struct arena_process no_process;
static _Atomic(struct arena_job *) own_job = &no_job;
static _Atomic(struct arena_process *) own_process = &no_process;
static _Atomic enum attached attached;
static _Atomic uint64_t rest_until_ns;

struct arena *arena_mapped(void) { return mapped; }
struct arena_job *arena_job(void) { return atomic_load_explicit(&own_job, memory_order_acquire); }
unsigned arena_job_row(void) { return (unsigned)(arena_job() - mapped->jobs); }
struct arena_process *arena_process(void) { return atomic_load_explicit(&own_process, memory_order_acquire); }

/* -- rows ---------------------------------------------------------------------------------------------------------- */

void arena_reap(uint64_t gpus)
{
    struct arena *arena = mapped;
    unsigned used = atomic_load(&arena->processes_used);
    for (unsigned i = 0; i < used && i < ARENA_PROCESSES; i++) {
        struct arena_process *row = &arena->processes[i];
        int job = turns_job_of(row);
        if (row == arena_process() || atomic_load(&row->job) == 0)
            continue;
        if (job >= 0 && gpus && !(atomic_load(&arena->jobs[job].gpus) & gpus))
            continue;
        if (!arena_file_is_taken(i))
            atomic_store(&row->job, 0);
    }
}

/* The bits of the job's GPUs; 0: the table is full. */
static uint64_t gpu_bits(const struct job_file *file)
{
    struct arena *arena = mapped;
    uint64_t bits = 0;
    for (uint32_t k = 0; k < file->gpu_count && k < JOB_MAX_GPUS; k++) {
        unsigned i = 0;
        while (i < ARENA_GPUS && arena->gpus[i][0] && strncmp(arena->gpus[i], file->gpus[k], JOB_UUID_CHARS) != 0)
            i++;
        if (i == ARENA_GPUS)
            return 0;
        if (!arena->gpus[i][0])
            memcpy(arena->gpus[i], file->gpus[k], JOB_UUID_CHARS);
        bits |= UINT64_C(1) << i;
    }
    return bits;
}

static struct arena_job *take_job_row(const struct job_file *file)
{
    struct arena_job *row = NULL;
    for (int i = 0; i < ARENA_JOBS; i++) {
        struct arena_job *one = &arena_mapped()->jobs[i];
        if (atomic_load(&one->used) && memcmp(one->id, file->job, JOB_ID_CHARS) == 0)
            return one;
        if (!atomic_load(&one->used) && !row)
            row = one;
    }
    uint64_t bits = gpu_bits(file);
    if (!row || !bits)
        return NULL;
    uint32_t epoch = turn_epoch(atomic_load(&row->turn)); /* counts on, so that no old number is met again */
    memset(row, 0, sizeof *row);
    memcpy(row->id, file->job, JOB_ID_CHARS);
    atomic_store(&row->priority, file->priority);
    atomic_store(&row->gpus, bits);
    atomic_store(&row->mode, settings()->mode);
    atomic_store(&row->quantum_us, settings()->quantum_us);
    atomic_store(&row->drain_us, settings()->drain_us);
    atomic_store(&row->since_ns, now_ns());
    atomic_store(&row->turn, epoch * TURN_EPOCH | TURN_NONE);
    atomic_store(&row->used, 1);
    return row;
}

static bool take_rows(const struct job_file *file)
{
    struct rings none = {{0}, {0}};
    struct arena *arena = mapped;
    arena_reap(0);
    turns_settle(arena, now_ns(), &none);
    unsigned i = 0;
    while (i < ARENA_PROCESSES && (atomic_load(&arena->processes[i].job) != 0 || !arena_file_take(i)))
        i++;
    struct arena_job *job_row = i < ARENA_PROCESSES ? take_job_row(file) : NULL;
    if (!job_row)
        return false;
    struct arena_process *row = &arena->processes[i];
    memset(row, 0, sizeof *row);
    atomic_store(&row->pid, getpid());
    if (i >= atomic_load(&arena->processes_used))
        atomic_store(&arena->processes_used, i + 1);
    atomic_store(&row->job, (uint32_t)(job_row - arena->jobs) + 1);
    atomic_store(&own_process, row);
    atomic_store(&own_job, job_row);
    return true;
}

/* -- patience ------------------------------------------------------------------------------------------------------ */

static void rest(void)
{
    atomic_store(&rest_until_ns, now_ns() + (uint64_t)REST_MS * NS_A_MS);
    trouble(TROUBLE_ARENA_BUSY, "the GPU lock could not be had in time: some work of this program ran without it");
}

static bool is_resting(void)
{
    uint64_t until = atomic_load(&rest_until_ns);
    return until && now_ns() < until;
}

/* -- attached ------------------------------------------------------------------------------------------------------ */

static void drop(void)
{
    arena_file_close();
    atomic_store(&own_job, &no_job);
    atomic_store(&own_process, &no_process);
}

/* What is wrong; NULL: nothing. */
static const char *attach(const struct job_file *file, bool *is_busy)
{
    struct arena_process *before = arena_process();
    drop();
    if (!arena_file_open())
        return "its file cannot be opened";
    if (!arena_file_lock(is_busy))
        return "its file cannot be locked";
    if (before != &no_process && atomic_load(&before->pid) == getpid())
        atomic_store(&before->job, 0); /* the row that was lost: its byte stays locked while the old mapping is there */
    const char *wrong = NULL;
    struct arena *arena = arena_file_map();
    if (!arena)
        wrong = "its file is not right";
    else if (atomic_store(&mapped, arena), !take_rows(file))
        wrong = "too many jobs, processes or GPUs share";
    arena_file_unlock();
    return wrong;
}

/* MPS runs the work of all its clients at once: a turn would stop what MPS is for. */
static bool is_beside_mps(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[PATH_MAX];
    struct stat status;
    if (folder && *folder && stat(folder, &status) == 0 && S_ISDIR(status.st_mode))
        return true;
    return snprintf(path, sizeof path, "/tmp/nvidia-mps/control") < (int)sizeof path && lstat(path, &status) == 0 &&
           (status.st_uid == 0 || status.st_uid == geteuid()) && !S_ISREG(status.st_mode);
}

/* The other bytes of the open file say who is alive. A child that is forked in the midst of this would inherit a
 * descriptor or a mapping that it knows nothing of, and keep them locked. So forks wait. */
static bool is_fork_waited_for;

/* Not for ever: a signal's handler may fork, in the very thread that has the lock. */
static void before_fork(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += FORK_WAIT_S;
    is_fork_waited_for = pthread_mutex_timedlock(&local, &until) == 0;
}

static void in_parent(void)
{
    if (is_fork_waited_for)
        pthread_mutex_unlock(&local);
}

static enum attached attach_first(void)
{
    static bool is_prepared;
    const struct job_file *file = job();
    if (!file || !(file->wants & WANTS_LOCK))
        return WITHOUT;
    if (is_beside_mps()) {
        trouble(TROUBLE_MPS, "the GPU lock is off, because MPS is in use here");
        return WITHOUT;
    }
    if (!is_prepared)
        pthread_atfork(before_fork, in_parent, gate_after_fork);
    is_prepared = true;
    bool is_busy = false;
    const char *wrong = contexts_can_be_synced() ? attach(file, &is_busy) : "the driver lacks what it needs";
    if (!wrong && !helper_start())
        wrong = "no thread can be made for it";
    if (!wrong)
        return ATTACHED;
    drop();
    if (is_busy) {
        rest();
        return NOT_YET;
    }
    char line[200];
    snprintf(line, sizeof line, "the GPU lock is off in this process: %s (" ARENA_NAME ")", wrong);
    trouble(TROUBLE_NO_ARENA, line);
    return WITHOUT;
}

enum attached arena_attach(void)
{
    enum attached known = atomic_load_explicit(&attached, memory_order_acquire);
    if (known != NOT_YET || is_resting())
        return known;
    pthread_mutex_lock(&local);
    known = atomic_load(&attached);
    if (known == NOT_YET && !is_resting())
        atomic_store(&attached, known = attach_first());
    pthread_mutex_unlock(&local);
    return known;
}

/* The rows, if they are still this process's: the program may have closed the descriptor, and lost them. */
static bool has_rows(void)
{
    const struct arena_process *process = arena_process();
    return process != &no_process && atomic_load(&process->job) == arena_job_row() + 1 &&
           atomic_load(&process->pid) == getpid() && atomic_load(&arena_job()->used);
}

bool arena_lock(struct rings *rings)
{
    memset(rings, 0, sizeof *rings);
    if (is_resting())
        return false;
    pthread_mutex_lock(&local);
    if (is_resting()) { /* another thread has waited in vain meanwhile */
        pthread_mutex_unlock(&local);
        return false;
    }
    bool is_busy, is_open = arena_file_is_open() || (has_rows() && arena_file_open_again());
    if (((is_open && has_rows()) || !attach(job(), &is_busy)) && arena_file_lock(&is_busy))
        return true;
    pthread_mutex_unlock(&local);
    rest();
    return false;
}

uint64_t arena_unlock(struct rings *rings)
{
    struct arena *arena = mapped;
    uint64_t again = turns_settle(arena, now_ns(), rings);
    arena_file_unlock();
    pthread_mutex_unlock(&local);
    for (unsigned i = 0; i < ARENA_PROCESSES; i++) {
        if (rings->bell[i / 64] >> i % 64 & 1)
            futex_wake(&arena->processes[i].bell);
        if (rings->call[i / 64] >> i % 64 & 1)
            futex_wake(&arena->processes[i].call);
    }
    return again;
}

void arena_after_fork(void)
{
    mutex_after_fork(&local);
    arena_file_after_fork();
    drop();
    atomic_store(&mapped, NULL);
    atomic_store(&attached, NOT_YET);
    atomic_store(&rest_until_ns, 0);
}
