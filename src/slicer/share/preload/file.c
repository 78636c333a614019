/* Files that processes share. A process owns a row as long as it holds the lock on the byte with the row's number. The
 * mapping also keeps that lock, because it refers to the same open file description. */
#include "file.h"
#include "gate.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>

enum {
    HIGH_DESCRIPTOR = 500,   /* programs tend to close or use low numbers without checking */
    SHORT_PATIENCE_MS = 2,
    SPINS = 50
};

bool file_fail(struct file *file, const char *what, int error)
{
    char text[60] = "";
    snprintf(file->why, sizeof file->why, "%s %s%s%s", file->called, what, error ? ": " : "",
             error ? strerror_r(error, text, sizeof text) : "");
    return false;
}

bool file_is_open(const struct file *file)
{
    struct stat status;
    return file->descriptor >= 0 && fstat(file->descriptor, &status) == 0 && status.st_dev == file->device &&
           status.st_ino == file->inode;
}

bool file_has_name(const struct file *file)
{
    struct stat status;
    return file_is_open(file) && fstat(file->descriptor, &status) == 0 && status.st_nlink != 0;
}

void file_close(struct file *file)
{
    if (file_is_open(file))
        close(file->descriptor);
    file->descriptor = -1;
}

bool file_open(struct file *file, const char *path, int flags)
{
    struct stat status;
    file_close(file);
    int low = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags, 0600);
    int high = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high >= 0)
        close(low);
    file->descriptor = high < 0 ? low : high;
    if (file->descriptor < 0 || fstat(file->descriptor, &status) != 0)
        return file_fail(file, "cannot be opened", errno);
    file->device = status.st_dev;
    file->inode = status.st_ino;
    return true;
}

bool file_is_right(struct file *file)
{
    struct stat status;
    if (fstat(file->descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
        (status.st_mode & 07777) != 0600)
        return file_fail(file, "is not a file of this user alone", 0);
    if (status.st_nlink != 1)
        return file_fail(file, status.st_nlink ? "has a second name" : "was removed", 0);
    if (status.st_size != (off_t)file->size)
        return file_fail(file, "has the wrong size: another version of slicer made it", 0);
    return true;
}

/* Allocate all blocks now: accessing a missing one on a full disk would raise SIGBUS. */
bool file_map(struct file *file)
{
    if (fallocate(file->descriptor, 0, 0, (off_t)file->size) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return file_fail(file, "has no room", errno);
    void *mapping = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, file->descriptor, 0);
    if (mapping == MAP_FAILED)
        return file_fail(file, "cannot be mapped", errno);
    file->mapping = mapping;
    return true;
}

/* F_WRLCK or F_UNLCK, without waiting. */
static bool set_lock(int descriptor, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
}

bool file_take(const struct file *file, unsigned row)
{
    return set_lock(file->descriptor, F_WRLCK, (off_t)row);
}

bool file_is_taken(const struct file *file, unsigned row)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)row, .l_len = 1};
    return fcntl(file->descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool file_lock(struct file *file)
{
    if (!file_is_open(file))
        return file_fail(file, "was closed by the program", 0);
    uint64_t start = now_ns(), pause = 20 * NS_A_US;
    uint64_t patience = (uint64_t)(file->is_stuck ? SHORT_PATIENCE_MS : file->patience_ms) * NS_A_MS;
    for (unsigned tries = 0; !set_lock(file->descriptor, F_WRLCK, LOCK_BYTE); tries++) {
        bool is_busy = errno == EAGAIN || errno == EACCES || errno == EINTR;
        if (!is_busy || now_ns() - start > patience) {
            file->is_stuck = is_busy;
            return file_fail(file, "cannot be locked", is_busy ? 0 : errno);
        }
        if (tries < SPINS) {
            sched_yield();
            continue;
        }
        sleep_ns(pause);
        pause = pause < NS_A_MS ? pause * 2 : NS_A_MS;
    }
    file->is_stuck = false;
    return true;
}

void file_unlock(const struct file *file)
{
    set_lock(file->descriptor, F_UNLCK, LOCK_BYTE);
}

/* In the child of a fork. A thread of the parent may have held the mutex. */
void file_in_child(struct file *file)
{
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&file->threads, &fresh, sizeof fresh);
    file_close(file);
    if (file->mapping)
        munmap(file->mapping, file->size);
    file->mapping = NULL;
    file->is_stuck = false;
}
