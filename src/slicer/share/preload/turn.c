/* The job's turn, from the point of view of one of its processes. */
#include "gate.h"

#include <string.h>

enum {
    PROBE_MS = 10,   /* how often a waiting thread checks for dead processes */
    LOOK_US = 200,   /* and how often it checks while its job yields */
    MOST_DOUBLINGS = 10
};

/* The value of arena_job.turn in the turn that this process has joined; 0: none. */
static _Atomic uint32_t expected;
static _Atomic uint32_t waiting; /* threads */
static _Atomic uint32_t rounds;  /* how often a wait for the end of this turn was in vain, because more work was started */
static pthread_mutex_t leaving = PTHREAD_MUTEX_INITIALIZER;

bool turn_is_ours(void)
{
    uint32_t turn = atomic_load(&expected);
    return turn && atomic_load(&arena_job()->turn) == turn;
}

bool turn_is_windowed(void)
{
    return atomic_load_explicit(&expected, memory_order_relaxed) & TURN_WINDOWED;
}

uint64_t turn_joined_ns(void)
{
    return atomic_load(&arena_process()->joined_ns);
}

static void count_time(void)
{
    struct arena_job *row = arena_job();
    struct job_file *file = job();
    uint64_t from = atomic_load(&row->counted_ns), now = now_ns();
    unsigned state = turn_state(atomic_load(&row->turn));
    if (!file || !from || now <= from || (state != TURN_HAS && state != TURN_YIELDS))
        return;
    /* Only one of the job's processes counts each interval. */
    if (atomic_compare_exchange_strong(&row->counted_ns, &from, now))
        atomic_fetch_add(&file->counters.held_ns, now - from);
}

/* Others ended turns of this job, and could not record that in its file. Without the arena's lock, because the message
 * may block. Only one of the job's processes reports each of them. */
static void tell_overtaken(void)
{
    struct arena_job *row = arena_job();
    struct job_file *file = job();
    uint32_t told = atomic_load(&row->overtaken_told), all = atomic_load(&row->overtaken);
    if (all == told || !file || !atomic_compare_exchange_strong(&row->overtaken_told, &told, all))
        return;
    atomic_fetch_add(&file->counters.undrained, all - told);
    trouble(TROUBLE_UNDRAINED, "the turn on the GPU went to another job before the work of this one was done");
}

void turn_tell(void)
{
    count_time();
    tell_overtaken();
}

void turn_move(void)
{
    struct rings rings;
    trouble(TROUBLE_NO_ARENA, "the file of the turns (" ARENA_NAME ") was removed: for a moment work ran without turns");
    if (arena_lock(&rings)) /* this opens the new one */
        arena_unlock(&rings);
}

/* Join the job's turn. Under the arena's lock. */
static void join(void)
{
    struct arena_job *row = arena_job();
    struct arena_process *process = arena_process();
    uint32_t turn = atomic_load(&row->turn);
    if (!atomic_load(&row->counted_ns)) {
        uint64_t now = now_ns();
        atomic_store(&row->had_ns, now);
        atomic_store(&row->counted_ns, now);
        struct job_file *file = job();
        if (file)
            atomic_fetch_add(&file->counters.turns, 1);
    }
    if (atomic_load(&process->joined) != turn_epoch(turn)) {
        atomic_store(&process->joined, turn_epoch(turn));
        atomic_store(&process->generation, 0);
        atomic_store(&process->joined_ns, now_ns());
    }
}

static uint64_t patience(uint32_t doublings)
{
    return (uint64_t)NS_A_MS << (doublings < MOST_DOUBLINGS ? doublings : MOST_DOUBLINGS);
}

/* The job is giving its turn back, and waits for work that may itself depend on work which another of its processes, or
 * a thread on another GPU, has not started yet, like the ranks of a collective operation. So a process whose own work is
 * done may start one more piece if another's has not been done for a while; then its own must be done again. To keep
 * two processes with long kernels from doing this for ever, work started to catch up is waited for twice as long. */
static bool may_catch_up(const struct context *context)
{
    static _Atomic uint64_t last_ns;
    struct arena_job *row = arena_job();
    uint32_t epoch = turn_epoch(atomic_load(&row->turn));
    uint64_t began = atomic_load(&row->since_ns), now = now_ns();
    if (capture_is_open())
        return true; /* a capture must reach its end: nothing can be synchronised before */
    if (atomic_load(&arena_process()->joined) == epoch) {
        bool may = contexts_wait_elsewhere(context, patience(atomic_load(&rounds))) &&
                   now - atomic_load(&last_ns) > LOOK_US * (uint64_t)NS_A_US;
        if (may)
            atomic_store(&last_ns, now);
        return may;
    }
    for (unsigned i = 0; i < ARENA_PROCESSES && i < atomic_load(&arena_mapped()->processes_used); i++) {
        const struct arena_process *other = &arena_mapped()->processes[i];
        uint64_t since = atomic_load(&other->joined_ns);
        since = since > began ? since : began;
        if (turns_job_of(other) == (int)arena_job_row() && atomic_load(&other->joined) == epoch && now > since &&
            now - since > patience(atomic_load(&other->generation))) {
            join();
            atomic_store(&arena_process()->generation, atomic_load(&other->generation) + 1);
            return true;
        }
    }
    return false;
}

/* Is the calling thread in the turn? Under the arena's lock. */
static bool admit(const struct context *context, bool reap, struct rings *rings)
{
    struct arena_job *row = arena_job();
    if (reap)
        arena_reap(atomic_load(&row->gpus));
    atomic_store(&arena_process()->wanting, atomic_load(&waiting) + 1); /* including the calling thread */
    if (turn_state(atomic_load(&row->turn)) == TURN_NONE)
        turns_request(arena_mapped(), row, now_ns());
    turns_settle(arena_mapped(), now_ns(), rings);
    unsigned state = turn_state(atomic_load(&row->turn));
    if (state == TURN_HAS && !gate_is_closed()) {
        join();
        atomic_store(&expected, atomic_load(&row->turn));
        return true;
    }
    bool is_stuck = state == TURN_YIELDS || (state == TURN_HAS && gate_is_closed());
    if (is_stuck && may_catch_up(context)) {
        join();
        helper_ring(); /* to wait for this work, too */
        return true;
    }
    return false;
}

static void count_wait(uint64_t waited)
{
    struct job_file *file = job();
    if (!file)
        return;
    atomic_fetch_add(&file->counters.waits, 1);
    atomic_fetch_add(&file->counters.waited_ns, waited);
    uint64_t longest = atomic_load(&file->counters.longest_ns);
    while (waited > longest && !atomic_compare_exchange_weak(&file->counters.longest_ns, &longest, waited))
        ;
}

bool turn_wait(const struct context *context)
{
    struct rings rings;
    uint64_t began = 0;
    bool is_in = false;
    while (!is_in && arena_lock(&rings)) {
        if (began)
            atomic_fetch_sub(&waiting, 1);
        is_in = admit(context, began != 0, &rings);
        struct arena_process *process = arena_process();
        if (is_in)
            gate_enter();
        else
            atomic_fetch_add(&waiting, 1);
        atomic_store(&process->wanting, atomic_load(&waiting));
        uint32_t seen = atomic_load(&process->call);
        bool is_yielding = turn_state(atomic_load(&arena_job()->turn)) != TURN_WAITING;
        uint64_t again = arena_unlock(&rings);
        tell_overtaken();
        if (is_in)
            break;
        began = began ? began : now_ns();
        uint64_t most = is_yielding ? LOOK_US * (uint64_t)NS_A_US : PROBE_MS * (uint64_t)NS_A_MS;
        again = again > NS_A_MS / 10 ? again : NS_A_MS / 10;
        fault("gate-waiting");
        futex_wait(&process->call, seen, again < most ? again : most);
    }
    if (!is_in && began)
        atomic_fetch_sub(&waiting, 1);
    if (began)
        count_wait(now_ns() - began);
    if (is_in)
        fault("gate-took");
    return is_in;
}

/* Under the arena's lock. */
static void part(struct rings *rings)
{
    struct arena_job *row = arena_job();
    count_time();
    atomic_store(&arena_process()->joined, 0);
    /* In the modes that give the turn back by themselves, one process of the job must not go on while another waits for
     * the end of another job's turn. */
    if (mode_gives_back() && atomic_load(&row->waited) && turn_state(atomic_load(&row->turn)) == TURN_HAS)
        turns_ask_back(arena_mapped(), arena_job_row(), now_ns(), rings);
}

/* Wait for the work, and leave the turn, unless more was started meanwhile. */
static bool leave_once(bool *is_over)
{
    struct rings rings;
    atomic_store(&expected, 0);
    for (int tries = 0; !gate_is_empty(); tries++)
        sleep_ns(tries < 100 ? 5 * NS_A_US : tries < 1000 ? 50 * NS_A_US : NS_A_MS);
    uint32_t before = gate_started();
    *is_over = !contexts_sync() || !arena_lock(&rings);
    if (*is_over)
        return false;
    fault("gate-drained");
    *is_over = gate_is_empty() && gate_started() == before && !atomic_load(&expected);
    if (*is_over)
        part(&rings);
    arena_unlock(&rings);
    tell_overtaken();
    return *is_over;
}

bool turn_leave(void)
{
    bool has_left = false, is_over = false;
    pthread_mutex_lock(&leaving);
    gate_close();
    fault("gate-yielding");
    for (atomic_store(&rounds, 0); !is_over; atomic_fetch_add(&rounds, 1))
        has_left = leave_once(&is_over);
    gate_open();
    pthread_mutex_unlock(&leaving);
    return has_left;
}
