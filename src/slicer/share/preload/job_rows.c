/* The row of this process in the job's file, and the locks on the file.
 *
 * The mapping keeps the row's lock: it refers to the same open file description. So a program that closes all of its
 * descriptors loses nothing, and a forked child has to give up the mapping, too.
 */
#include "cap.h"
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    ROW_NONE = -1,
    ROW_NOT_TRIED = -2,
    PATIENCE_MS = 500,     /* for the lock, which is held for microseconds: who has it is stopped, or the machine is slow */
    SHORT_PATIENCE_MS = 2, /* once it was waited for in vain */
    SLEEP_NS = 50000
};

_Atomic uint64_t job_held[JOB_MAX_GPUS];

static pthread_mutex_t locking = PTHREAD_MUTEX_INITIALIZER; /* one thread at a time; guards all of these */
static int descriptor = -1;
static dev_t device;
static ino_t inode;
static pid_t owner;
static bool is_stuck;
static bool is_copy; /* the file was cut short: in its place is memory of this process alone */
static int cancel_state;

static _Atomic int row = ROW_NOT_TRIED;

static struct job_file said; /* the file up to its processes, as it was checked */

bool job_row_is_live(unsigned other)
{
    return descriptor < 0 || file_is_locked(descriptor, other);
}

void job_rows_attached(struct job_file *file, int opened, const struct stat *status)
{
    descriptor = opened;
    device = status->st_dev;
    inode = status->st_ino;
    owner = getpid();
    memcpy(&said, file, offsetof(struct job_file, processes));
}

const struct job_file *job_said(void)
{
    return job_seen() != NULL ? &said : NULL;
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* The lock on LOCK_BYTE. Only patience is spent on a process that is stopped with it. */
static bool lock_file(void)
{
    if (descriptor < 0 || is_copy)
        return false;
    uint64_t end = 0;
    for (unsigned tries = 0; !file_lock(descriptor, F_WRLCK, LOCK_BYTE); tries++) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return false;
        if (end == 0)
            end = now_ms() + (is_stuck ? SHORT_PATIENCE_MS : PATIENCE_MS);
        else if (now_ms() >= end) {
            is_stuck = true;
            return false;
        }
        struct timespec pause = {.tv_nsec = tries < 4 ? 1000 : SLEEP_NS};
        nanosleep(&pause, NULL);
    }
    is_stuck = false;
    return true;
}

/* Own the first row whose byte is free, and write what this process holds in it. */
static int take_row(struct job_file *file)
{
    for (int taken = 0; descriptor >= 0 && taken < JOB_MAX_PROCESSES; taken++) {
        if (!file_lock(descriptor, F_WRLCK, taken))
            continue;
        struct job_process *mine = &file->processes[taken];
        for (int gpu = 0; gpu < JOB_MAX_GPUS; gpu++)
            atomic_store(&mine->charged[gpu], atomic_load(&job_held[gpu]));
        atomic_store(&mine->pid, (int32_t)owner);
        uint32_t rows = atomic_load(&file->rows);
        while (rows < (uint32_t)taken + 1 && !atomic_compare_exchange_weak(&file->rows, &rows, (uint32_t)taken + 1))
            continue;
        return taken;
    }
    return ROW_NONE;
}

/* The file was cut short: whoever touches the mapping gets a SIGBUS. Put memory of our own in its place, in one step:
 * other threads read there. */
static void replace_with_copy(struct job_file *file)
{
    struct job_file *copy = mmap(NULL, sizeof *copy, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED)
        return;
    memcpy(copy, &said, offsetof(struct job_file, processes));
    int mine = atomic_load(&row);
    atomic_store(&copy->rows, mine < 0 ? 0 : (uint32_t)mine + 1);
    for (int gpu = 0; mine >= 0 && gpu < JOB_MAX_GPUS; gpu++)
        atomic_store(&copy->processes[mine].charged[gpu], atomic_load(&job_held[gpu]));
    if (mremap(copy, sizeof *copy, sizeof *copy, MREMAP_MAYMOVE | MREMAP_FIXED, file) == MAP_FAILED) {
        munmap(copy, sizeof *copy);
        return;
    }
    is_copy = true;
}

static bool is_ours(struct stat *status)
{
    return descriptor >= 0 && fstat(descriptor, status) == 0 && status->st_dev == device && status->st_ino == inode;
}

/* The program closed the descriptor, and may have opened something else with its number. The row is kept by the
 * mapping. */
static void open_again(void)
{
    struct stat status;
    const char *why;
    descriptor = job_open(&why, &status);
    if (descriptor >= 0 && !is_ours(&status)) {
        close(descriptor);
        descriptor = -1;
    }
}

/* See to it that the file can be touched and locked. */
static void check_file(struct job_file *file)
{
    struct stat status;
    if (is_copy)
        return;
    if (!is_ours(&status)) {
        open_again();
        if (descriptor < 0 || fstat(descriptor, &status) != 0)
            return;
    }
    if (status.st_size < (off_t)sizeof *file)
        replace_with_copy(file);
}

static void hold(struct job_file *file)
{
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_mutex_lock(&locking);
    cancel_state = state;
    if (file != NULL)
        check_file(file);
}

void job_hold(void)
{
    hold(job_seen());
}

bool job_lock(void)
{
    struct job_file *file = job_seen();
    /* A child that was made without the handlers of fork: clone, or _Fork. */
    if (file != NULL && owner != getpid()) {
        job_after_fork();
        file = job();
    }
    hold(file);
    return file != NULL && lock_file();
}

void job_unlock(bool locked)
{
    if (locked)
        file_lock(descriptor, F_UNLCK, LOCK_BYTE);
    int state = cancel_state;
    pthread_mutex_unlock(&locking);
    pthread_setcancelstate(state, NULL);
}

void job_rows_take(struct job_file *file)
{
    if (atomic_load_explicit(&row, memory_order_acquire) != ROW_NOT_TRIED)
        return;
    int saved = errno;
    bool locked = job_lock();
    bool is_first = atomic_load(&row) == ROW_NOT_TRIED;
    if (is_first)
        atomic_store_explicit(&row, take_row(file), memory_order_release);
    int taken = atomic_load(&row);
    job_unlock(locked);
    if (is_first && taken < 0 && (file->wants & WANTS_CAP) != 0)
        atomic_fetch_or(&file->troubles, TROUBLE_NO_ROW); /* cuInit says it, and fails */
    else if (is_first && taken < 0)
        trouble(TROUBLE_NO_ROW, "this job has too many processes that use CUDA: this one is not counted");
    errno = saved;
}

int job_row_now(void)
{
    int now = atomic_load_explicit(&row, memory_order_acquire);
    return now < 0 ? ROW_NONE : now;
}

int job_row(void)
{
    struct job_file *file = job_seen();
    if (file == NULL)
        return ROW_NONE;
    job_rows_take(file);
    return job_row_now();
}

void job_rows_after_fork(void)
{
    mutex_after_fork(&locking);
    struct stat status;
    if (is_ours(&status))
        close(descriptor); /* open here too, it would keep the parent's row after the parent's death */
    descriptor = -1;
    is_stuck = is_copy = false;
    atomic_store(&row, ROW_NOT_TRIED);
    for (int gpu = 0; gpu < JOB_MAX_GPUS; gpu++)
        atomic_store(&job_held[gpu], 0);
}
