/* The arena's file, and this process's rows in it. */
#include "gate.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum {
    HIGH_DESCRIPTOR = 500,                /* programs like to close or use the low numbers without asking */
    PATIENCE_MS = 3000,                   /* with the arena's lock, which is held for microseconds: but machines are slow */
    REST_MS = 1000,                       /* without the lock, after it could not be had */
    SPINS = 50
};

static pthread_mutex_t local = PTHREAD_MUTEX_INITIALIZER; /* an open file's lock does not keep threads apart */
static _Atomic(struct arena *) mapped;
static int descriptor = -1;
static dev_t device;
static ino_t inode;
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
unsigned arena_process_row(void) { return (unsigned)(arena_process() - mapped->processes); }

static bool set_lock(off_t byte, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
}

/* Does another process hold the byte? A process's own locks do not show. True where it cannot be found out. */
static bool is_locked(off_t byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Never by waiting in the kernel: a process that is frozen while it has the lock must not freeze all others. */
static bool lock_file(void)
{
    uint64_t start = now_ns(), pause = 20 * NS_A_US;
    for (unsigned tries = 0; !set_lock(ARENA_LOCK_BYTE, F_WRLCK); tries++) {
        if ((errno != EAGAIN && errno != EACCES) || now_ns() - start > (uint64_t)PATIENCE_MS * NS_A_MS)
            return false;
        if (tries < SPINS) {
            sched_yield();
            continue;
        }
        sleep_ns(pause);
        pause = pause < NS_A_MS ? pause * 2 : NS_A_MS;
    }
    fault("arena-locked");
    return true;
}

/* Is the descriptor what it was? The program may have closed it, and its number may be another file by now. */
static bool is_open(void)
{
    struct stat status;
    return descriptor >= 0 && fstat(descriptor, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

/* -- the file -------------------------------------------------------------------------------------------------------- */

static int open_file(void)
{
    const char *file = job_path();
    const char *slash = file ? strrchr(file, '/') : NULL;
    char path[PATH_MAX];
    if (!slash || snprintf(path, sizeof path, "%.*s/" ARENA_NAME, (int)(slash - file), file) >= (int)sizeof path)
        return -1;
    int low = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    int high = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high < 0)
        return low;
    close(low);
    return high;
}

static bool is_private(struct stat *status)
{
    return fstat(descriptor, status) == 0 && S_ISREG(status->st_mode) && status->st_uid == geteuid() &&
           status->st_nlink == 1;
}

static bool is_right(const struct stat *status)
{
    const struct arena *arena = mapped;
    return (status->st_mode & 07777) == 0600 && status->st_size == sizeof(struct arena) &&
           atomic_load(&arena->magic) == ARENA_MAGIC && arena->version == ARENA_VERSION && arena->size == sizeof *arena && arena->gpu_rows == ARENA_GPUS &&
           arena->job_rows == ARENA_JOBS && arena->process_rows == ARENA_PROCESSES &&
           atomic_load(&arena->processes_used) <= ARENA_PROCESSES;
}

/* Map it; make it first, if nobody did, or nobody came to the end of it. Under the lock. */
static bool map_file(void)
{
    struct stat status;
    if (!is_private(&status))
        return false;
    uint64_t magic = 0;
    bool is_new = status.st_size < (off_t)sizeof(struct arena) && pread(descriptor, &magic, sizeof magic, 0) >= 0 && !magic;
    /* Blocks that are not there would be a SIGBUS at the first touch, if the file system is full then. */
    if (is_new && (fchmod(descriptor, 0600) != 0 || posix_fallocate(descriptor, 0, sizeof(struct arena)) != 0))
        return false;
    if (!is_private(&status) || status.st_size != sizeof(struct arena))
        return false;
    struct arena *arena = mmap(NULL, sizeof *arena, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (arena == MAP_FAILED)
        return false;
    mapped = arena; /* one that was mapped before stays so: threads may be looking at it */
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
    return is_right(&status);
}

/* -- rows -------------------------------------------------------------------------------------------------------------- */

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
        if (!is_locked((off_t)i))
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
    while (i < ARENA_PROCESSES && (atomic_load(&arena->processes[i].job) != 0 || !set_lock((off_t)i, F_WRLCK)))
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

/* -- patience ------------------------------------------------------------------------------------------------------------ */

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

/* -- attached ------------------------------------------------------------------------------------------------------------ */

static void drop_file(void)
{
    if (is_open())
        close(descriptor);
    descriptor = -1;
    atomic_store(&own_job, &no_job);
    atomic_store(&own_process, &no_process);
}

static const char *const busy = "";

/* What is wrong; NULL: nothing. */
static const char *attach(const struct job_file *file)
{
    struct stat status;
    struct arena_process *before = arena_process();
    drop_file();
    descriptor = open_file();
    if (descriptor < 0 || fstat(descriptor, &status) != 0)
        return "its file cannot be opened";
    bool is_mapped = mapped && device == status.st_dev && inode == status.st_ino;
    device = status.st_dev;
    inode = status.st_ino;
    if (!S_ISREG(status.st_mode))
        return "its file is not right";
    if (!lock_file())
        return errno == EAGAIN || errno == EACCES ? busy : "its file cannot be locked";
    if (before != &no_process && atomic_load(&before->pid) == getpid())
        atomic_store(&before->job, 0); /* the row that was lost. Its byte stays locked as long as the old mapping is there */
    const char *wrong = is_mapped || map_file() ? NULL : "its file is not right";
    if (!wrong && !take_rows(file))
        wrong = "too many jobs, processes or GPUs share";
    set_lock(ARENA_LOCK_BYTE, F_UNLCK);
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
static void before_fork(void) { pthread_mutex_lock(&local); }
static void in_parent(void) { pthread_mutex_unlock(&local); }

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
    const char *wrong = attach(file);
    if (!wrong && !helper_start())
        wrong = "no thread can be made for it";
    if (!wrong)
        return ATTACHED;
    drop_file();
    if (wrong == busy) {
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

/* The mapping keeps the rows' locks: it refers to the same open file description. So nothing is lost with the
 * descriptor, and all that a new one is needed for is the file's lock. */
static bool open_again(void)
{
    descriptor = open_file();
    if (is_open())
        return true;
    if (descriptor >= 0)
        close(descriptor);
    descriptor = -1;
    return false;
}

bool arena_lock(struct rings *rings)
{
    memset(rings, 0, sizeof *rings);
    if (is_resting())
        return false;
    pthread_mutex_lock(&local);
    bool is_lost = (!is_open() && !(has_rows() && open_again())) || !has_rows();
    if ((!is_lost || !attach(job())) && lock_file())
        return true;
    pthread_mutex_unlock(&local);
    rest();
    return false;
}

uint64_t arena_unlock(struct rings *rings)
{
    struct arena *arena = mapped;
    uint64_t again = turns_settle(arena, now_ns(), rings);
    set_lock(ARENA_LOCK_BYTE, F_UNLCK);
    pthread_mutex_unlock(&local);
    for (unsigned i = 0; i < ARENA_PROCESSES; i++) {
        if (rings->bell[i / 64] >> i % 64 & 1)
            futex_wake(&arena->processes[i].bell);
        if (rings->call[i / 64] >> i % 64 & 1)
            futex_wake(&arena->processes[i].call);
    }
    return again;
}

/* In the child of a fork. Its copy of the descriptor would keep the parent's row locked after the parent's death. */
void arena_after_fork(void)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&local, &fresh, sizeof fresh);
    drop_file();
    if (mapped)
        munmap(mapped, sizeof(struct arena));
    mapped = NULL;
    atomic_store(&attached, NOT_YET);
    atomic_store(&rest_until_ns, 0);
}
