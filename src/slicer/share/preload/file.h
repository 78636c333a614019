/* Files that processes share: opened, and the locks on their bytes. */
#ifndef SLICER_SHARE_FILE_H
#define SLICER_SHARE_FILE_H

#include <fcntl.h>
#include <stdbool.h>
#include <unistd.h>

enum { HIGH_DESCRIPTOR = 500 }; /* programs like to close or use the low numbers without asking */

/* No link is followed. O_NONBLOCK: a pipe with that name holds nobody up. -1: errno says why. */
static inline int file_open(const char *path, int flags)
{
    int low = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | flags, 0600);
    int high = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (high < 0)
        return low;
    close(low);
    return high;
}

/* Take (F_WRLCK) or give back (F_UNLCK) the lock on a byte, without waiting. False: errno says why. */
static inline bool file_lock(int descriptor, short type, off_t byte)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &lock) == 0;
}

/* Does somebody else hold it? True also if that cannot be told. */
static inline bool file_is_locked(int descriptor, off_t byte)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

#endif
