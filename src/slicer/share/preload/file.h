/* A file that processes share: opened, checked, mapped, and the locks on its bytes (file.c). There are two: the job's file
 * and the arena. */
#ifndef SLICER_SHARE_FILE_H
#define SLICER_SHARE_FILE_H

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "share.h"

struct file {
    const char *called;   /* in messages */
    unsigned patience_ms; /* with the lock on LOCK_BYTE, which is held for microseconds: but machines are slow */
    size_t size;
    int descriptor;       /* -1: none */
    dev_t device;         /* of what is open */
    ino_t inode;
    void *mapping;
    bool is_stuck;        /* its lock was waited for in vain */
    char why[160];        /* why it cannot be used */
    pthread_mutex_t threads; /* an open file's lock does not keep threads apart */
};

#define FILE_OF(name, ms, type) \
    {.called = (name), .patience_ms = (ms), .size = sizeof(type), .descriptor = -1, .threads = PTHREAD_MUTEX_INITIALIZER}

/* Why it cannot be used, for `why`. Always false. `error`: an errno, or 0. */
bool file_fail(struct file *file, const char *what, int error);

/* Open it, in place of what was open. No link is followed, and a pipe holds nobody up. */
bool file_open(struct file *file, const char *path, int flags);

/* Is the descriptor still what was opened? The program may have closed it, and its number may be another file's by now.
 * (The mapping keeps the rows.) And does the file still have its name? */
bool file_is_open(const struct file *file);
bool file_has_name(const struct file *file);
void file_close(struct file *file);

/* Is it a plain file of this user alone, of the right size? Then: have all of its blocks, and map it. */
bool file_is_right(struct file *file);
bool file_map(struct file *file);

/* The lock on LOCK_BYTE. Never waits in the kernel: a process that is frozen while it has the lock must not freeze all
 * others. They spend their patience once, and then only a little of it. */
bool file_lock(struct file *file);
void file_unlock(const struct file *file);

/* The byte of a row: take it; and does another process hold it? (True where that cannot be found out.) */
bool file_take(const struct file *file, unsigned row);
bool file_is_taken(const struct file *file, unsigned row);

/* In the child of a fork its copies of the descriptor and the mapping would keep the rows of the parent after that one's
 * death: both go. */
void file_in_child(struct file *file);

#endif
