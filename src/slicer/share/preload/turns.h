/* Whose turn it is: the decision, on an arena in memory. Touches nothing else: no file, no clock, no driver. */
#ifndef SLICER_SHARE_TURNS_H
#define SLICER_SHARE_TURNS_H

#include "arena.h"

/* Processes to be woken, by their rows: bits. */
struct rings {
    uint64_t bell[ARENA_PROCESSES / 64];
    uint64_t call[ARENA_PROCESSES / 64];
};

static inline unsigned turn_state(uint32_t turn) { return turn & TURN_STATE; }
static inline uint32_t turn_epoch(uint32_t turn) { return turn / TURN_EPOCH; }

/* The row of the job that a process's row names; -1: none. */
int turns_job_of(const struct arena_process *process);

/* The job wants a turn. It has none now, and does not wait yet. */
void turns_request(struct arena *arena, struct arena_job *job, uint64_t now);

/* The job gives the turn back as soon as its work is done. It has it now. */
void turns_ask_back(struct arena *arena, unsigned job, uint64_t now, struct rings *rings);

/* End what is over, ask back what others wait for, and give out what is free. Says how many nanoseconds later it should
 * be looked at again at the latest, while somebody waits. To be called under the arena's lock, after every change. */
uint64_t turns_settle(struct arena *arena, uint64_t now, struct rings *rings);

/* Ring a process: its helper thread, or its waiting threads. */
void turns_ring(struct arena *arena, unsigned process, uint64_t now, struct rings *rings);
void turns_call(struct arena *arena, unsigned process, struct rings *rings);

#endif
