/* The helper thread: gives the turn back when others ask for it, or when the program does nothing with it. */
#include "gate.h"

#include <signal.h>

enum {
    TICK_MS = 1000, /* counts how long the turn was held, so that little is lost if the process is killed */
    WATCH_US = 500, /* how often it looks whether the program does something, while others wait */
    IDLE_US = 1000, /* so long without work, and the turn goes to others */
    FORGOTTEN_US = 20000, /* the same, of a turn that should last for so many launches: no more of them come */
    IDLE_AFTER_SYNC_US = 200, /* the same, after a sync of the program's own, if nobody waits who would keep it long */
    STACK = 1024 * 1024
};

static _Atomic uint32_t is_started, has_clerk;

static void *clerk(void *unused)
{
    (void)unused;
    for (;;) {
        sleep_ns((uint64_t)TICK_MS * NS_A_MS);
        turn_tell();
    }
    return NULL;
}

/* A thread that no signal of the program's reaches. */
static bool start_thread(void *(*function)(void *))
{
    sigset_t all, old;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* inherited */
    int error = pthread_create(&thread, &attributes, function, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

/* From the first time on, a second thread keeps the books, because the work that this one waits for may take long. */
static bool leave(void)
{
    if (!atomic_exchange(&has_clerk, 1))
        start_thread(clerk);
    return turn_leave();
}

void helper_ring(void)
{
    struct arena_process *process = arena_process();
    if (atomic_load(&process->bell) == atomic_load(&process->heard))
        atomic_store(&process->rung_ns, now_ns()); /* before: who sees it unheard looks since when */
    atomic_fetch_add(&process->bell, 1);
    futex_wake(&process->bell);
}

/* What the program did when the helper last looked. */
struct activity {
    uint64_t launched;
    uint64_t since_ns;
};

static bool is_idle(struct activity *seen, unsigned most_us, uint64_t *look_again)
{
    uint64_t launched_then, synced = gate_synced_ns(&launched_then);
    uint64_t launched = seats_launched(), now = now_ns();
    uint32_t waited = atomic_load(&arena_job()->waited);
    if (launched != seen->launched || !seats_are_empty() || gate_syncing() || !seen->since_ns) {
        seen->launched = launched;
        seen->since_ns = now;
    }
    /* A program that has just waited for its work, and whose turn comes back at once when it wants it, needs none. */
    bool is_quick = waited == WAITED_BY_LOWER && launched == launched_then && !gate_syncing();
    uint64_t limit = (uint64_t)(is_quick ? IDLE_AFTER_SYNC_US : most_us) * NS_A_US;
    uint64_t idle = now - (is_quick ? synced : seen->since_ns);
    uint64_t rest = idle < limit ? limit - idle : limit;
    *look_again = rest < (uint64_t)WATCH_US * NS_A_US ? rest : (uint64_t)WATCH_US * NS_A_US;
    return idle >= limit;
}

/* Do what is to be done now. Says how long to sleep then, if nobody rings. */
static uint64_t look(struct activity *seen)
{
    struct arena_job *row = arena_job();
    uint32_t turn = atomic_load(&row->turn);
    bool has_part = atomic_load(&arena_process()->joined) != 0;
    uint64_t again = (uint64_t)TICK_MS * NS_A_MS;
    if (!has_part)
        return again;
    turn_tell();
    if (turn_state(turn) != TURN_HAS || atomic_load(&arena_process()->joined) != turn_epoch(turn))
        return leave() ? again : NS_A_MS; /* asked back, or gone on without us */
    if (!atomic_load(&row->waited)) {
        seen->since_ns = 0;
        return again;
    }
    const struct settings *asked = settings();
    bool is_over = false;
    if (asked->mode == MODE_YIELD)
        is_over = is_idle(seen, IDLE_US, &again);
    else if (asked->mode == MODE_LAUNCHES && !asked->skip_syncs)
        is_over = is_idle(seen, FORGOTTEN_US, &again);
    else if (asked->mode == MODE_TIME) {
        is_over = now_ns() - turn_joined_ns() >= (uint64_t)asked->hold_us * NS_A_US;
        again = (uint64_t)WATCH_US * NS_A_US;
    }
    if (is_over && !leave())
        return NS_A_MS;
    return again;
}

static void *helper(void *unused)
{
    struct activity seen = {0, 0};
    (void)unused;
    gate_self()->depth = 1; /* what it calls passes */
    fault("helper-started");
    for (;;) {
        struct arena_process *process = arena_process();
        uint32_t heard = atomic_load(&process->bell);
        atomic_store(&process->rung_ns, now_ns()); /* it may be rung again already */
        atomic_store(&process->heard, heard);
        uint64_t again = look(&seen);
        if (process == arena_process())
            futex_wait(&process->bell, heard, again);
    }
    return NULL;
}

bool helper_start(void)
{
    return atomic_exchange(&is_started, 1) || start_thread(helper);
}

void helper_after_fork(void)
{
    atomic_store(&is_started, 0);
    atomic_store(&has_clerk, 0);
}
