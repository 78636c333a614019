/* The job's turn, as one of its processes takes part in it. */
#include "gate.h"

#include <errno.h>
#include <string.h>

enum {
    PROBE_MS = 10,   /* how often the first thread that waits looks who is dead */
    LOOK_MS = 100,   /* how often the others look */
    BEHIND = 1024    /* launches: as many as a stream queues */
};

/* What arena_job.turn says in the turn that this process has a part in; 0: in none. */
static _Atomic uint32_t expected;
static _Atomic uint64_t joined_ns;
static _Atomic uint32_t waiting; /* threads */
static _Atomic uint32_t looking; /* does one of these look often? */
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
    return atomic_load(&joined_ns);
}

void turn_count(void)
{
    struct arena_job *row = arena_job();
    struct job_file *file = job();
    uint64_t from = atomic_load(&row->counted_ns), now = now_ns();
    unsigned state = turn_state(atomic_load(&row->turn));
    if (!file || !from || now <= from || (state != TURN_HAS && state != TURN_YIELDS))
        return;
    /* One of the job's processes counts each piece of time. */
    if (atomic_compare_exchange_strong(&row->counted_ns, &from, now))
        atomic_fetch_add(&file->counters.held_ns, now - from);
}

/* Others ended turns of this job, and could not write that into its file. */
static void tell_overtaken(void)
{
    struct arena_job *row = arena_job();
    uint32_t all = atomic_load(&row->overtaken), told = atomic_exchange(&row->overtaken_told, all);
    struct job_file *file = job();
    if (all == told || !file)
        return;
    atomic_fetch_add(&file->counters.undrained, all - told);
    trouble(TROUBLE_UNDRAINED, "the turn on the GPU went to another job before the work of this one was done");
}

void turn_tell(void)
{
    struct rings rings;
    const struct arena_job *row = arena_job();
    turn_count();
    if (atomic_load(&row->overtaken) == atomic_load(&row->overtaken_told) || !arena_lock(&rings))
        return;
    tell_overtaken();
    arena_unlock(&rings);
}

/* Take part in the turn that the job has. Under the arena's lock. */
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
        atomic_store(&joined_ns, now_ns());
    }
}

/* The job gives its turn back, and waits for work that may itself wait for work of another process or GPU of the job,
 * as the ranks of a collective operation do. So one that is a little behind the furthest may catch up. */
static bool may_catch_up(const struct context *context)
{
    struct arena_job *row = arena_job();
    uint64_t here, most, began = atomic_load(&row->since_ns), now = now_ns();
    if (capture_is_open())
        return true; /* what captures must go on to its end: nothing can be synchronised before */
    bool is_several = context_counts(context, &here, &most);
    atomic_store(&arena_process()->launched, most);
    for (unsigned i = 0; i < ARENA_PROCESSES && i < atomic_load(&arena_mapped()->processes_used); i++) {
        const struct arena_process *other = &arena_mapped()->processes[i];
        if (other == arena_process() || turns_job_of(other) != (int)arena_job_row())
            continue;
        is_several |= atomic_load(&other->joined) == turn_epoch(atomic_load(&row->turn));
        if (atomic_load(&other->launched) > most)
            most = atomic_load(&other->launched);
    }
    bool has_waited = now > began && now - began > (uint64_t)settings()->window_us * NS_A_US;
    return is_several && has_waited && most > here && most - here <= BEHIND;
}

/* Is the calling thread in? Under the arena's lock. */
static bool admit(const struct context *context, bool reap, struct rings *rings)
{
    struct arena_job *row = arena_job();
    if (reap)
        arena_reap(atomic_load(&row->gpus));
    tell_overtaken();
    atomic_store(&arena_process()->wanting, atomic_load(&waiting) + 1); /* and the calling one */
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
        helper_ring(); /* to wait for this work too */
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

/* Sleep until something has changed, or it is time to look. One thread of the process looks often, for all. */
static void sleep_until_called(struct arena_process *process, uint32_t seen, uint64_t at_most, bool is_yielding)
{
    uint32_t nobody = 0;
    bool is_first = atomic_compare_exchange_strong(&looking, &nobody, 1);
    uint64_t time = is_yielding ? NS_A_MS : (uint64_t)(is_first ? PROBE_MS : LOOK_MS) * NS_A_MS;
    fault("gate-waiting");
    futex_wait(&process->call, seen, at_most < time ? at_most : time);
    if (is_first)
        atomic_store(&looking, 0);
}

static bool wait_in_line(_Atomic uint32_t *busy, const struct context *context)
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
            atomic_fetch_add(busy, 1);
        else
            atomic_fetch_add(&waiting, 1);
        atomic_store(&process->wanting, atomic_load(&waiting));
        uint32_t seen = atomic_load(&process->call);
        bool is_yielding = turn_state(atomic_load(&arena_job()->turn)) != TURN_WAITING;
        uint64_t again = arena_unlock(&rings);
        if (is_in)
            break;
        began = began ? began : now_ns();
        sleep_until_called(process, seen, again > NS_A_MS / 10 ? again : NS_A_MS / 10, is_yielding);
    }
    if (!is_in && began)
        atomic_fetch_sub(&waiting, 1);
    if (began)
        count_wait(now_ns() - began);
    return is_in;
}

bool turn_wait(_Atomic uint32_t *busy, const struct context *context)
{
    int before = errno, cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    bool is_in = wait_in_line(busy, context);
    pthread_setcancelstate(cancel, NULL);
    if (is_in)
        fault("gate-took");
    errno = before;
    return is_in;
}

/* Under the arena's lock. */
static void part(struct rings *rings)
{
    struct arena_job *row = arena_job();
    turn_count();
    tell_overtaken();
    atomic_store(&arena_process()->joined, 0);
    /* In the modes that give the turn back by themselves, one process of the job must not go on while another waits for
     * a turn of another job to end. */
    if (settings()->mode != MODE_YIELD && atomic_load(&row->waited) && turn_state(atomic_load(&row->turn)) == TURN_HAS)
        turns_ask_back(arena_mapped(), arena_job_row(), now_ns(), rings);
}

/* Wait for what was started, and part from the turn, unless more was started meanwhile. */
static bool leave_once(bool *is_over)
{
    struct rings rings;
    atomic_store(&expected, 0);
    seats_wait_until_empty();
    uint64_t here, most, before = seats_launched();
    context_counts(NULL, &here, &most);
    atomic_store(&arena_process()->launched, most);
    *is_over = !contexts_sync() || !arena_lock(&rings);
    if (*is_over)
        return false;
    fault("gate-drained");
    *is_over = seats_are_empty() && seats_launched() == before && !atomic_load(&expected);
    if (*is_over)
        part(&rings);
    arena_unlock(&rings);
    return *is_over;
}

bool turn_leave(void)
{
    int before = errno, cancel;
    bool has_left = false, is_over = false;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&leaving);
    gate_close();
    fault("gate-yielding");
    while (!is_over)
        has_left = leave_once(&is_over);
    gate_open();
    pthread_mutex_unlock(&leaving);
    pthread_setcancelstate(cancel, NULL);
    errno = before;
    return has_left;
}

void turn_after_fork(void)
{
    mutex_after_fork(&leaving);
    atomic_store(&expected, 0);
    atomic_store(&waiting, 0);
    atomic_store(&looking, 0);
}
