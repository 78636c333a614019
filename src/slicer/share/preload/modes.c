/* The modes launches, time and each, for experiments: the program's own threads give the turn back without a request,
 * and wait for the GPU each time. Only this file knows how these modes differ. */
#include "gate.h"

enum {
    FORGOTTEN_US = 20000 /* a turn of MODE_LAUNCHES also ends after this time without a launch */
};

bool mode_gives_back(void)
{
    return settings()->mode != MODE_YIELD;
}

/* Keeps the turn during the first skip_syncs syncs, if that is requested. */
void mode_at_sync(void)
{
    static _Atomic uint32_t skipped;
    if (atomic_load(&skipped) < settings()->skip_syncs) {
        atomic_fetch_add(&skipped, 1);
        contexts_sync();
    } else
        turn_leave();
}

void mode_after_work(void)
{
    static _Atomic uint32_t started;
    const struct settings *asked = settings();
    bool is_over = asked->mode == MODE_EACH;
    if (asked->mode == MODE_TIME)
        is_over = now_ns() - turn_joined_ns() >= (uint64_t)asked->hold_us * NS_A_US;
    else if (asked->mode == MODE_LAUNCHES && atomic_fetch_add(&started, 1) + 1 >= asked->launches) {
        atomic_store(&started, 0);
        is_over = true;
    }
    if (is_over)
        mode_at_sync();
}

bool mode_is_over(uint64_t idle_ns)
{
    const struct settings *asked = settings();
    if (asked->mode == MODE_TIME)
        return now_ns() - turn_joined_ns() >= (uint64_t)asked->hold_us * NS_A_US;
    return asked->mode == MODE_LAUNCHES && !asked->skip_syncs && idle_ns >= (uint64_t)FORGOTTEN_US * NS_A_US;
}
