/* The arena's file: opened, checked, mapped, and the locks on its bytes. */
#include "arena_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "file.h"
#include "gate.h"

enum {
    PATIENCE_MS = 3000,    /* with the file's lock, which is held for microseconds: but machines are slow */
    SPINS = 50
};

static int descriptor = -1;
static dev_t device; /* of the file that is mapped */
static ino_t inode;
static struct arena *mapped;

/* -- open ---------------------------------------------------------------------------------------------------------- */

static int open_arena(void)
{
    const char *file = job_path();
    const char *slash = file ? strrchr(file, '/') : NULL;
    char path[PATH_MAX];
    if (!slash || snprintf(path, sizeof path, "%.*s/" ARENA_NAME, (int)(slash - file), file) >= (int)sizeof path)
        return -1;
    return file_open(path, O_CREAT);
}

bool arena_file_is_open(void)
{
    struct stat status;
    return descriptor >= 0 && fstat(descriptor, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

void arena_file_close(void)
{
    if (arena_file_is_open())
        close(descriptor);
    descriptor = -1;
}

bool arena_file_open_again(void)
{
    descriptor = open_arena();
    if (arena_file_is_open())
        return true;
    if (descriptor >= 0)
        close(descriptor);
    descriptor = -1;
    return false;
}

bool arena_file_open(void)
{
    struct stat status;
    arena_file_close();
    descriptor = open_arena();
    if (descriptor < 0)
        return false;
    if (fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
        close(descriptor);
        descriptor = -1;
        return false;
    }
    if (status.st_dev != device || status.st_ino != inode)
        mapped = NULL; /* another file than before. The old mapping stays: threads may be looking at it */
    device = status.st_dev;
    inode = status.st_ino;
    return true;
}

/* -- locked -------------------------------------------------------------------------------------------------------- */

bool arena_file_take(unsigned row)
{
    return file_lock(descriptor, F_WRLCK, (off_t)row);
}

bool arena_file_is_taken(unsigned row)
{
    return file_is_locked(descriptor, (off_t)row);
}

bool arena_file_lock(bool *is_busy)
{
    uint64_t start = now_ns(), pause = 20 * NS_A_US;
    *is_busy = false;
    for (unsigned tries = 0; !file_lock(descriptor, F_WRLCK, ARENA_LOCK_BYTE); tries++) {
        *is_busy = errno == EAGAIN || errno == EACCES;
        if (!*is_busy || now_ns() - start > (uint64_t)PATIENCE_MS * NS_A_MS)
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

void arena_file_unlock(void)
{
    file_lock(descriptor, F_UNLCK, ARENA_LOCK_BYTE);
}

/* -- mapped -------------------------------------------------------------------------------------------------------- */

static bool is_private(struct stat *status)
{
    return fstat(descriptor, status) == 0 && S_ISREG(status->st_mode) && status->st_uid == geteuid() &&
           status->st_nlink == 1;
}

static bool is_right(const struct arena *arena)
{
    return atomic_load(&arena->magic) == ARENA_MAGIC && arena->version == ARENA_VERSION &&
           arena->size == sizeof *arena && arena->gpu_rows == ARENA_GPUS && arena->job_rows == ARENA_JOBS &&
           arena->process_rows == ARENA_PROCESSES && atomic_load(&arena->processes_used) <= ARENA_PROCESSES;
}

/* All of its blocks: to touch one that is not there would be a SIGBUS, if the file system is full then. */
static bool fill(void)
{
    if (fallocate(descriptor, 0, 0, sizeof(struct arena)) == 0)
        return true;
    return (errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(descriptor, sizeof(struct arena)) == 0;
}

static void make(struct arena *arena)
{
    memset(arena, 0, sizeof *arena);
    arena->version = ARENA_VERSION;
    arena->size = sizeof *arena;
    arena->gpu_rows = ARENA_GPUS;
    arena->job_rows = ARENA_JOBS;
    arena->process_rows = ARENA_PROCESSES;
    atomic_store(&arena->magic, ARENA_MAGIC);
}

struct arena *arena_file_map(void)
{
    struct stat status;
    uint64_t magic = 0;
    if (mapped)
        return mapped;
    if (!is_private(&status))
        return NULL;
    /* Shorter, and without the word that is written last: whoever made it did not come to the end. */
    bool is_short = status.st_size < (off_t)sizeof(struct arena);
    bool is_new = is_short && pread(descriptor, &magic, sizeof magic, 0) >= 0 && !magic;
    if (is_new && fchmod(descriptor, 0600) != 0)
        return NULL;
    if ((!is_new && status.st_size != sizeof(struct arena)) || !fill())
        return NULL;
    if (!is_private(&status) || status.st_size != sizeof(struct arena) || (status.st_mode & 07777) != 0600)
        return NULL;
    struct arena *arena = mmap(NULL, sizeof *arena, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (arena == MAP_FAILED)
        return NULL;
    fault("arena-made");
    if (atomic_load(&arena->magic) == 0)
        make(arena);
    if (is_right(arena))
        return mapped = arena;
    munmap(arena, sizeof *arena);
    return NULL;
}

void arena_file_after_fork(void)
{
    arena_file_close();
    if (mapped)
        munmap(mapped, sizeof *mapped);
    mapped = NULL;
}
