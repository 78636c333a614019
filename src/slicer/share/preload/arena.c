/* This process's rows in the arena, and the arena's lock. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "file.h"
#include "gate.h"

enum {
    REST_MS = 1000, /* a rest without the lock, after a failed attempt */
    PATIENCE_MS = 3000
};

struct file arena_file = FILE_OF("the arena", PATIENCE_MS, struct arena);
static _Atomic(struct arena *) mapped;
static struct arena_job no_job; /* used if there is none; nobody gives it a turn */
static struct arena_process no_process;
static _Atomic(struct arena_job *) own_job = &no_job;
static _Atomic(struct arena_process *) own_process = &no_process;
static _Atomic enum attached attached;
static _Atomic uint64_t rest_until_ns;

struct arena *arena_mapped(void) { return mapped; }
struct arena_job *arena_job(void) { return atomic_load_explicit(&own_job, memory_order_acquire); }
unsigned arena_job_row(void) { return (unsigned)(arena_job() - mapped->jobs); }
struct arena_process *arena_process(void) { return atomic_load_explicit(&own_process, memory_order_acquire); }

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
        if (!file_is_taken(&arena_file, i))
            atomic_store(&row->job, 0);
    }
}

/* The bits of the job's GPUs; 0 if the table is full. */
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
    uint32_t epoch = turn_epoch(atomic_load(&row->turn)); /* never reset, so that no old number reappears */
    memset(row, 0, sizeof *row);
    memcpy(row->id, file->job, JOB_ID_CHARS);
    atomic_store(&row->priority, file->priority);
    atomic_store(&row->gpus, bits);
    atomic_store(&row->mode, settings()->mode);
    atomic_store(&row->quantum_us, settings()->quantum_us);
    atomic_store(&row->drain_us, settings()->drain_us);
    atomic_store(&row->overtake_us, settings()->overtake_us);
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
    while (i < ARENA_PROCESSES && (atomic_load(&arena->processes[i].job) != 0 || !file_take(&arena_file, i)))
        i++;
    struct arena_job *job_row = i < ARENA_PROCESSES ? take_job_row(file) : NULL;
    if (!job_row)
        return false;
    struct arena_process *row = &arena->processes[i];
    memset(row, 0, sizeof *row);
    atomic_store(&row->pid, getpid());
    atomic_store(&row->awake_ns, now_ns());
    if (i >= atomic_load(&arena->processes_used))
        atomic_store(&arena->processes_used, i + 1);
    atomic_store(&row->job, (uint32_t)(job_row - arena->jobs) + 1);
    atomic_store(&own_process, row);
    atomic_store(&own_job, job_row);
    return true;
}

static void rest(void)
{
    atomic_store(&rest_until_ns, now_ns() + (uint64_t)REST_MS * NS_A_MS);
    trouble(TROUBLE_ARENA_BUSY, "the GPU lock was not available in time: some work of this program ran without it");
}

static bool is_resting(void)
{
    uint64_t until = atomic_load(&rest_until_ns);
    return until && now_ns() < until;
}

static void drop(void)
{
    file_close(&arena_file);
    atomic_store(&own_job, &no_job);
    atomic_store(&own_process, &no_process);
}

static const char *arena_path(void)
{
    static char path[PATH_MAX];
    const char *file = job_path(), *slash = file ? strrchr(file, '/') : NULL;
    if (slash && !path[0] && snprintf(path, sizeof path, "%.*s/" ARENA_NAME, (int)(slash - file), file) >= PATH_MAX)
        path[0] = '\0';
    return path;
}

/* A file that is too short, or lacks the word that is written last, is incomplete. Under its lock. */
static bool make(void)
{
    struct stat status;
    uint64_t magic = 0;
    if (fstat(arena_file.descriptor, &status) != 0 || status.st_size >= (off_t)sizeof(struct arena) ||
        pread(arena_file.descriptor, &magic, sizeof magic, 0) < 0 || magic)
        return true;
    if (fchmod(arena_file.descriptor, 0600) != 0 || (fallocate(arena_file.descriptor, 0, 0, sizeof(struct arena)) != 0 &&
        (errno == ENOSPC || ftruncate(arena_file.descriptor, sizeof(struct arena)) != 0)))
        return file_fail(&arena_file, "cannot be made", errno);
    return true;
}

static bool is_right(struct arena *arena)
{
    fault("arena-made");
    if (atomic_load(&arena->magic) == 0) {
        memset(arena, 0, sizeof *arena);
        arena->version = ARENA_VERSION;
        arena->size = sizeof *arena;
        arena->gpu_rows = ARENA_GPUS;
        arena->job_rows = ARENA_JOBS;
        arena->process_rows = ARENA_PROCESSES;
        atomic_store(&arena->magic, ARENA_MAGIC);
    }
    return atomic_load(&arena->magic) == ARENA_MAGIC && arena->version == ARENA_VERSION &&
           arena->size == sizeof *arena && atomic_load(&arena->processes_used) <= ARENA_PROCESSES;
}

/* A different file gets another mapping. The old one stays, because threads may be using it. Under its lock. */
static bool map(dev_t device, ino_t inode)
{
    bool is_mapped = arena_file.mapping && arena_file.device == device && arena_file.inode == inode;
    if (!make() || !file_is_right(&arena_file) || (!is_mapped && !file_map(&arena_file)))
        return false;
    if (!is_right(arena_file.mapping)) {
        arena_file.mapping = NULL;
        return file_fail(&arena_file, "is not right", 0);
    }
    atomic_store(&mapped, (struct arena *)arena_file.mapping);
    return true;
}

static bool attach(const struct job_file *file)
{
    struct arena_process *before = arena_process();
    dev_t device = arena_file.device;
    ino_t inode = arena_file.inode;
    drop();
    if (!file_open(&arena_file, arena_path(), O_CREAT))
        return false;
    if (!file_lock(&arena_file))
        return false;
    fault("arena-locked");
    if (before != &no_process && atomic_load(&before->pid) == getpid())
        atomic_store(&before->job, 0); /* the lost row: its byte stays locked as long as the old mapping exists */
    bool is_attached = map(device, inode) && (take_rows(file) || file_fail(&arena_file, "is full", 0));
    file_unlock(&arena_file);
    return is_attached;
}

/* MPS runs the work of all its clients at once, which turns would prevent. */
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

static enum attached attach_first(void)
{
    const struct job_file *file = job();
    if (!file || !(file->wants & WANTS_LOCK))
        return WITHOUT;
    if (is_beside_mps()) {
        trouble(TROUBLE_MPS, "the GPU lock is off, because MPS is in use");
        return WITHOUT;
    }
    bool is_attached = contexts_can_be_synced() ? attach(file) : file_fail(&arena_file, "needs functions of the driver", 0);
    if (is_attached && (helper_start() || file_fail(&arena_file, "needs a thread", 0)))
        return atexit(capture_begin), ATTACHED; /* registered after CUDA's own handler, so it runs before that */
    drop();
    if (arena_file.is_stuck) {
        rest();
        return NOT_YET;
    }
    char line[240];
    snprintf(line, sizeof line, "the GPU lock is off in this process: %s (" ARENA_NAME ")", arena_file.why);
    trouble(TROUBLE_NO_ARENA, line);
    return WITHOUT;
}

enum attached arena_attach(void)
{
    enum attached known = atomic_load_explicit(&attached, memory_order_acquire);
    if (known != NOT_YET || is_resting())
        return known;
    pthread_mutex_lock(&arena_file.threads);
    known = atomic_load(&attached);
    if (known == NOT_YET && !is_resting())
        atomic_store(&attached, known = attach_first());
    pthread_mutex_unlock(&arena_file.threads);
    return known;
}

/* Whether the rows are still this process's: the program may have closed the descriptor, and lost them. */
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
    pthread_mutex_lock(&arena_file.threads);
    if (is_resting()) { /* another thread has waited in vain meanwhile */
        pthread_mutex_unlock(&arena_file.threads);
        return false;
    }
    bool is_there = has_rows() && file_has_name(&arena_file);
    if ((is_there || attach(job())) && file_lock(&arena_file)) {
        fault("arena-locked");
        return true;
    }
    pthread_mutex_unlock(&arena_file.threads);
    rest();
    return false;
}

uint64_t arena_unlock(struct rings *rings)
{
    struct arena *arena = mapped;
    uint64_t again = turns_settle(arena, now_ns(), rings);
    file_unlock(&arena_file);
    pthread_mutex_unlock(&arena_file.threads);
    for (unsigned i = 0; i < ARENA_PROCESSES; i++) {
        if (rings->bell[i / 64] >> i % 64 & 1)
            futex_wake(&arena->processes[i].bell);
        if (rings->call[i / 64] >> i % 64 & 1)
            futex_wake(&arena->processes[i].call);
    }
    return again;
}
