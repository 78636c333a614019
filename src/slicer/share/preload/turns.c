/* Whose turn it is. Strict priority, then first come, first served. Jobs of one priority have the turn together, unless
 * one of them asks for turns. A waiting job keeps later ones from its GPUs, even if it waits for only one of them. So
 * nobody waits for ever for two GPUs that are never free at once. */
#include "arena.h"

#include "share.h"

enum {
    NS_A_US = 1000,
    A_LITTLE_NS = 1000 * 1000 * 1000,
    ASLEEP_NS = 1000 * 1000 * 1000, /* the longest sleep of a helper thread, if the drain limit is shorter */
    TAKE_NS = 500 * 1000 * 1000,   /* how long a job may take to use a granted turn; a frozen one never does */
    LEAST_QUANTUM_US = 1000
};

#define MOST_NS UINT64_MAX
#define LOAD(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define STORE(field, value) atomic_store_explicit(&(field), (value), memory_order_relaxed)

/* What a job's processes are doing. */
struct tally {
    unsigned processes, joined, wanting, deaf;
};

/* A time in the future is invalid: then longer has passed than anybody waits. But times written without the lock may be
 * slightly later than `now`. */
static uint64_t since(uint64_t then, uint64_t now)
{
    if (then > now)
        return then - now < A_LITTLE_NS ? 0 : MOST_NS;
    return now - then;
}

int turns_job_of(const struct arena_process *process)
{
    uint32_t job = LOAD(process->job);
    return job >= 1 && job <= ARENA_JOBS ? (int)job - 1 : -1;
}

static unsigned rows(const struct arena *arena)
{
    unsigned used = LOAD(arena->processes_used);
    return used < ARENA_PROCESSES ? used : ARENA_PROCESSES;
}

static void set_state(struct arena_job *job, unsigned state, uint64_t now)
{
    uint32_t turn = LOAD(job->turn);
    STORE(job->since_ns, now);
    /* The gate of every process of the job reads this word, without a lock. */
    atomic_store(&job->turn, (turn & ~(uint32_t)TURN_STATE) | state);
}

static unsigned state_of(const struct arena_job *job)
{
    return LOAD(job->used) ? turn_state(LOAD(job->turn)) : (unsigned)TURN_NONE;
}

static bool has_turn(const struct arena_job *job)
{
    unsigned state = state_of(job);
    return state == TURN_HAS || state == TURN_YIELDS;
}

static bool wants_turns(const struct arena_job *job)
{
    return LOAD(job->quantum_us) != 0 || LOAD(job->mode) != MODE_YIELD;
}

/* Must these two not have the turn at the same time? */
static bool exclude(const struct arena_job *one, const struct arena_job *other)
{
    return (LOAD(one->gpus) & LOAD(other->gpus)) != 0 &&
           (LOAD(one->priority) != LOAD(other->priority) || wants_turns(one) || wants_turns(other));
}

static void ring_job(struct arena *arena, unsigned job, struct rings *rings)
{
    for (unsigned i = 0; i < rows(arena); i++)
        if (turns_job_of(&arena->processes[i]) == (int)job) {
            atomic_fetch_add(&arena->processes[i].bell, 1);
            rings->bell[i / 64] |= UINT64_C(1) << i % 64;
        }
}

static void call_job(struct arena *arena, unsigned job, struct rings *rings)
{
    for (unsigned i = 0; i < rows(arena); i++)
        if (turns_job_of(&arena->processes[i]) == (int)job && LOAD(arena->processes[i].wanting)) {
            atomic_fetch_add(&arena->processes[i].call, 1);
            rings->call[i / 64] |= UINT64_C(1) << i % 64;
        }
}

static void count(struct arena *arena, uint64_t now, struct tally *tallies)
{
    for (unsigned i = 0; i < rows(arena); i++) {
        const struct arena_process *row = &arena->processes[i];
        int number = turns_job_of(row);
        if (number < 0)
            continue;
        const struct arena_job *job = &arena->jobs[number];
        struct tally *tally = &tallies[number];
        tally->processes++;
        tally->wanting += LOAD(row->wanting) != 0;
        if (!has_turn(job) || LOAD(row->joined) != turn_epoch(LOAD(job->turn)))
            continue;
        tally->joined++;
        uint64_t patience = (uint64_t)LOAD(job->drain_us) * NS_A_US;
        tally->deaf += since(LOAD(row->awake_ns), now) > (patience > ASLEEP_NS ? patience : ASLEEP_NS);
    }
    for (unsigned i = 0; i < ARENA_JOBS; i++)
        if (!tallies[i].processes && LOAD(arena->jobs[i].used)) {
            set_state(&arena->jobs[i], TURN_NONE, now);
            STORE(arena->jobs[i].used, 0);
        }
}

void turns_request(struct arena *arena, struct arena_job *job, uint64_t now)
{
    STORE(job->ticket, atomic_fetch_add(&arena->next_ticket, 1));
    set_state(job, TURN_WAITING, now);
}

void turns_ask_back(struct arena *arena, unsigned job, uint64_t now, struct rings *rings)
{
    set_state(&arena->jobs[job], TURN_YIELDS, now);
    ring_job(arena, job, rings);
}

/* The job's state after its turn. */
static void end(struct arena *arena, unsigned number, const struct tally *tally, uint64_t now, struct rings *rings)
{
    struct arena_job *job = &arena->jobs[number];
    uint64_t had = since(LOAD(job->had_ns), now);
    bool was_used = LOAD(job->counted_ns) != 0;
    if (tally->wanting && was_used)
        turns_request(arena, job, now);
    else if (tally->wanting && had < TAKE_NS)
        set_state(job, TURN_WAITING, now); /* it had no time to use the turn, and keeps its place */
    else
        set_state(job, TURN_NONE, now); /* its threads, if any wait, do not answer: they ask again when they can */
    call_job(arena, number, rings);
}

/* The strongest job that waits for this job's end: the first of the highest priority. */
static const struct arena_job *strongest_waiter(const struct arena *arena, const struct arena_job *job)
{
    const struct arena_job *best = NULL;
    for (unsigned i = 0; i < ARENA_JOBS; i++) {
        const struct arena_job *other = &arena->jobs[i];
        if (other == job || state_of(other) != TURN_WAITING || !exclude(job, other))
            continue;
        if (!best || LOAD(other->priority) > LOAD(best->priority) ||
            (LOAD(other->priority) == LOAD(best->priority) && LOAD(other->ticket) < LOAD(best->ticket)))
            best = other;
    }
    return best;
}

/* How long work may take after its turn. A job whose process is throttled, compiles or pages in delays a higher priority
 * only a little; then its work goes on beside the other's. */
static uint64_t limit_ns(const struct arena_job *job, const struct arena_job *waiter)
{
    uint64_t drain = LOAD(job->drain_us), overtake = LOAD(job->overtake_us);
    bool is_higher = waiter && LOAD(waiter->priority) > LOAD(job->priority);
    return (is_higher && overtake < drain ? overtake : drain) * NS_A_US;
}

static void end_what_is_over(struct arena *arena, const struct tally *tallies, uint64_t now, struct rings *rings)
{
    for (unsigned i = 0; i < ARENA_JOBS; i++) {
        struct arena_job *job = &arena->jobs[i];
        const struct tally *tally = &tallies[i];
        if (!has_turn(job))
            continue;
        bool yields = state_of(job) == TURN_YIELDS;
        uint64_t took = yields ? since(LOAD(job->since_ns), now) : 0;
        bool is_undrained = tally->deaf || took > (uint64_t)LOAD(job->drain_us) * NS_A_US;
        if (tally->joined && (is_undrained || took > limit_ns(job, strongest_waiter(arena, job)))) {
            if (is_undrained)
                atomic_fetch_add(&job->overtaken, 1);
            end(arena, i, tally, now, rings);
        } else if (!tally->joined && (yields || !tally->wanting))
            end(arena, i, tally, now, rings);
    }
}

/* The quantum is set by the job that asks for turns between equals. */
static uint64_t quantum_ns(const struct arena_job *job, const struct arena_job *waiter)
{
    uint64_t quantum = LOAD(job->quantum_us) ? LOAD(job->quantum_us) : LOAD(waiter->quantum_us);
    return (quantum ? quantum : LEAST_QUANTUM_US) * NS_A_US;
}

static uint32_t by_whom(const struct arena_job *job, const struct arena_job *waiter)
{
    int32_t own = LOAD(job->priority), other = LOAD(waiter->priority);
    return other > own ? WAITED_BY_HIGHER : other < own ? WAITED_BY_LOWER : WAITED_BY_EQUAL;
}

/* Who waits for a job that has the turn, and must it be asked back? Returns when to check again. */
static uint64_t ask(struct arena *arena, unsigned number, uint64_t now, struct rings *rings)
{
    struct arena_job *job = &arena->jobs[number];
    const struct arena_job *waiter = strongest_waiter(arena, job);
    uint32_t waited = waiter ? by_whom(job, waiter) : (uint32_t)WAITED_NOT;
    bool is_news = waited > LOAD(job->waited);
    atomic_store(&job->waited, waited);
    if (state_of(job) == TURN_YIELDS) {
        uint64_t limit = limit_ns(job, waiter), took = since(LOAD(job->since_ns), now);
        return took < limit ? limit - took + 1 : 1;
    }
    if (!waiter)
        return MOST_NS;
    uint64_t had = since(LOAD(job->had_ns), now), whole = MOST_NS;
    if (!LOAD(job->counted_ns))
        whole = TAKE_NS; /* it got the turn, and has not used it yet */
    else if (LOAD(job->mode) == MODE_YIELD && waited == WAITED_BY_EQUAL)
        whole = quantum_ns(job, waiter);
    if (had >= whole || (LOAD(job->mode) == MODE_YIELD && waited == WAITED_BY_HIGHER)) {
        turns_ask_back(arena, number, now, rings);
        return 0;
    }
    if (is_news)
        ring_job(arena, number, rings);
    return whole - had;
}

static void grant(struct arena *arena, unsigned number, uint64_t now, struct rings *rings)
{
    struct arena_job *job = &arena->jobs[number];
    uint32_t turn = LOAD(job->turn);
    uint32_t epoch = turn_epoch(turn + TURN_EPOCH) ? turn_epoch(turn + TURN_EPOCH) : 1;
    STORE(job->had_ns, now);
    STORE(job->since_ns, now);
    STORE(job->counted_ns, 0);
    STORE(job->waited, WAITED_NOT);
    STORE(job->turns, LOAD(job->turns) + 1);
    atomic_store(&job->turn, epoch * TURN_EPOCH | (turn & TURN_WINDOWED) | TURN_HAS);
    call_job(arena, number, rings);
}

/* Is there a job with the turn, or in line before this one, that excludes this one? */
static bool is_kept_from(const struct arena *arena, unsigned number, const uint64_t *seen)
{
    for (unsigned i = 0; i < ARENA_JOBS; i++)
        if (i != number && (has_turn(&arena->jobs[i]) || seen[i / 64] >> i % 64 & 1) &&
            exclude(&arena->jobs[number], &arena->jobs[i]))
            return true;
    return false;
}

static void grant_what_is_free(struct arena *arena, uint64_t now, struct rings *rings)
{
    uint64_t seen[ARENA_JOBS / 64] = {0};
    for (;;) {
        int best = -1;
        for (int i = 0; i < ARENA_JOBS; i++) {
            const struct arena_job *job = &arena->jobs[i], *other = best < 0 ? NULL : &arena->jobs[best];
            if (state_of(job) != TURN_WAITING || seen[i / 64] >> i % 64 & 1)
                continue;
            if (!other || LOAD(job->priority) > LOAD(other->priority) ||
                (LOAD(job->priority) == LOAD(other->priority) && LOAD(job->ticket) < LOAD(other->ticket)))
                best = i;
        }
        if (best < 0)
            return;
        if (!is_kept_from(arena, (unsigned)best, seen))
            grant(arena, (unsigned)best, now, rings);
        seen[best / 64] |= UINT64_C(1) << best % 64;
    }
}

/* A job keeps little work in flight while there is one of higher priority, waiting or not, and while one of its own
 * priority with which it takes turns waits. So a turn ends soon after it was asked back. */
static bool is_windowed(const struct arena *arena, const struct arena_job *job)
{
    for (unsigned i = 0; i < ARENA_JOBS; i++) {
        const struct arena_job *other = &arena->jobs[i];
        if (other == job || !LOAD(other->used) || !exclude(job, other) || by_whom(job, other) == WAITED_BY_LOWER)
            continue;
        if (by_whom(job, other) == WAITED_BY_HIGHER || state_of(other) == TURN_WAITING)
            return true;
    }
    return false;
}

static void set_windows(struct arena *arena)
{
    for (unsigned i = 0; i < ARENA_JOBS; i++) {
        struct arena_job *job = &arena->jobs[i];
        uint32_t turn = LOAD(job->turn);
        if (LOAD(job->used) && is_windowed(arena, job) != ((turn & TURN_WINDOWED) != 0))
            atomic_store(&job->turn, turn ^ TURN_WINDOWED);
    }
}

uint64_t turns_settle(struct arena *arena, uint64_t now, struct rings *rings)
{
    uint64_t again = MOST_NS;
    /* Twice, because a turn that is asked back from an inactive job is over at once. */
    for (int round = 0; round < 2; round++) {
        struct tally tallies[ARENA_JOBS] = {{0}};
        count(arena, now, tallies);
        end_what_is_over(arena, tallies, now, rings);
        grant_what_is_free(arena, now, rings);
        again = MOST_NS;
        for (unsigned i = 0; i < ARENA_JOBS; i++)
            if (has_turn(&arena->jobs[i])) {
                uint64_t then = ask(arena, i, now, rings);
                again = then < again ? then : again;
            }
    }
    set_windows(arena);
    return again;
}
