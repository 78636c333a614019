/* The helper thread: gives the turn back if others ask for it, or if the program does not use it. */
#include "file.h"
#include "gate.h"

#include <signal.h>

enum {
    TICK_MS = 500, /* records how long the turn was held, so that little is lost if the process is killed */
    WATCH_US = 200, /* how often it checks whether the program works, while others wait */
    IDLE_US = 400,  /* after this time without work, the turn goes to others */
    STACK = 1024 * 1024
};

static _Atomic uint32_t is_started;

void helper_ring(void)
{
    struct arena_process *process = arena_process();
    atomic_fetch_add(&process->bell, 1);
    futex_wake(&process->bell);
}

/* The program's activity at the helper's last check. */
struct activity {
    uint32_t started;
    uint64_t since_ns;
};

static uint64_t idle_ns(struct activity *seen)
{
    uint32_t started = gate_started();
    if (started != seen->started || !gate_is_empty() || gate_syncing() || !seen->since_ns) {
        seen->started = started;
        seen->since_ns = now_ns();
    }
    return now_ns() - seen->since_ns;
}

/* Do what is due. Returns how long to sleep then, unless somebody rings. */
static uint64_t look(struct activity *seen)
{
    struct arena_job *row = arena_job();
    uint32_t turn = atomic_load(&row->turn), joined = atomic_load(&arena_process()->joined);
    uint64_t again = (uint64_t)TICK_MS * NS_A_MS;
    if (!joined)
        return again;
    if (!file_has_name(&arena_file))
        turn_move();
    turn_tell();
    if (turn_state(turn) != TURN_HAS || joined != turn_epoch(turn))
        return turn_leave() ? again : NS_A_MS; /* asked back, or ended without us */
    if (!atomic_load(&row->waited)) {
        seen->since_ns = 0;
        return again;
    }
    again = (uint64_t)WATCH_US * NS_A_US;
    uint64_t idle = idle_ns(seen);
    bool is_over = mode_gives_back() ? mode_is_over(idle) : idle >= (uint64_t)IDLE_US * NS_A_US;
    return is_over && !turn_leave() ? NS_A_MS : again;
}

static void *helper(void *unused)
{
    static const struct hook own = {"helper", NULL, false};
    struct activity seen = {0, 0};
    (void)unused;
    share_hook = &own; /* what it calls passes */
    fault("helper-started");
    for (;;) {
        struct arena_process *process = arena_process();
        uint32_t heard = atomic_load(&process->bell);
        atomic_store(&process->awake_ns, now_ns());
        uint64_t again = look(&seen);
        if (process == arena_process())
            futex_wait(&process->bell, heard, again);
    }
    return NULL;
}

/* Start a thread that receives none of the program's signals. */
bool helper_start(void)
{
    sigset_t all, old;
    pthread_attr_t attributes;
    pthread_t thread;
    if (atomic_exchange(&is_started, 1))
        return true;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* inherited */
    int error = pthread_create(&thread, &attributes, helper, NULL);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}
