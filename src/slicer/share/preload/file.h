/* A file that processes share: opened, checked and mapped, with locks on its bytes (file.c). There are two: the job's
 * file and the arena. */
#ifndef SLICER_SHARE_FILE_H
#define SLICER_SHARE_FILE_H

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "share.h"

struct file {
    const char *called;   /* its name in messages */
    unsigned patience_ms; /* for the lock on LOCK_BYTE, which is held for microseconds, but machines may be slow */
    size_t size;
    int descriptor;       /* -1: none */
    dev_t device;         /* of the open file */
    ino_t inode;
    void *mapping;
    bool is_stuck;        /* a wait for its lock was in vain */
    char why[160];        /* why it cannot be used */
    pthread_mutex_t threads; /* an open file's lock does not exclude threads */
};

#define FILE_OF(name, ms, type) \
    {.called = (name), .patience_ms = (ms), .size = sizeof(type), .descriptor = -1, .threads = PTHREAD_MUTEX_INITIALIZER}

/* Record why the file cannot be used. Always returns false. `error`: an errno, or 0. */
bool file_fail(struct file *file, const char *what, int error);

/* Open the file in place of the old one. Follows no link, and does not block on a pipe. */
bool file_open(struct file *file, const char *path, int flags);

/* Is the descriptor still the same file? The program may have closed it, and its number may belong to another file now.
 * (The mapping keeps the rows.) And does the file still have its name? */
bool file_is_open(const struct file *file);
bool file_has_name(const struct file *file);
void file_close(struct file *file);

/* Is it a regular file of this user alone, with the right size? Then allocate all of its blocks, and map it. */
bool file_is_right(struct file *file);
bool file_map(struct file *file);

/* The lock on LOCK_BYTE. Never waits in the kernel: a process that is frozen while it holds the lock must not freeze all
 * others. They spend their full patience once, and then only a little. */
bool file_lock(struct file *file);
void file_unlock(const struct file *file);

/* Take the byte of a row; does another process hold it? (True if that is unknown.) */
bool file_take(const struct file *file, unsigned row);
bool file_is_taken(const struct file *file, unsigned row);

/* In the child of a fork, drop its copies of the descriptor and the mapping: they would keep the parent's rows alive
 * after its death. */
void file_in_child(struct file *file);

#endif
