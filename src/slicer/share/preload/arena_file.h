/* The seam between the arena's rows (arena.c) and its file (arena_file.c). One thread at a time. */
#ifndef SLICER_SHARE_ARENA_FILE_H
#define SLICER_SHARE_ARENA_FILE_H

#include <stdbool.h>

#include "arena.h"

/* Open it; make it if there is none. False: it cannot be opened, or is no plain file. */
bool arena_file_open(void);

/* Is the descriptor what it was? The program may have closed it, and its number may be another file by now. */
bool arena_file_is_open(void);

/* After that. The mapping keeps the rows' locks, because it refers to the same open file description: so nothing is
 * lost with the descriptor, and all that a new one is needed for is the file's lock. */
bool arena_file_open_again(void);
void arena_file_close(void);

/* The file's lock. Never waits in the kernel: a process that is frozen while it has the lock must not freeze all others.
 * False: it cannot be had (*is_busy: in time). */
bool arena_file_lock(bool *is_busy);
void arena_file_unlock(void);

/* The byte of a row: take it; and does another process hold it? (True where that cannot be found out.) */
bool arena_file_take(unsigned row);
bool arena_file_is_taken(unsigned row);

/* Map it, under the lock; fill it in first, if nobody did, or nobody came to the end of it. NULL: it is not right. */
struct arena *arena_file_map(void);

/* In the child of a fork: its copies of the descriptor and the mapping would keep the parent's row after its death. */
void arena_file_after_fork(void);

#endif
