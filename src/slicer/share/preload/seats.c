/* Which threads start work at this moment, and how much they started. */
#include <string.h>

#include "gate.h"

enum { SEATS = 256 }; /* where there are more threads, the rest share the last one */

static struct seat seats[SEATS];
static _Atomic int seats_used; /* from here on, nobody ever sat */
static pthread_key_t at_thread_end;

static void stand_up(void *seat)
{
    struct seat *mine = seat;
    if (gate_self()->seat != mine)
        return; /* it was the parent's, before a fork */
    memset(gate_self(), 0, sizeof(struct self));
    if (mine == &seats[SEATS - 1])
        return;
    atomic_store(&mine->busy, 0); /* it may have been ended in the midst of a call */
    atomic_store(&mine->taken, 0);
}

void seat_take(void)
{
    struct seat *mine = &seats[SEATS - 1];
    for (int i = 0; i < SEATS - 1; i++) {
        uint32_t no = 0;
        if (!atomic_load_explicit(&seats[i].taken, memory_order_relaxed) &&
            atomic_compare_exchange_strong(&seats[i].taken, &no, 1)) {
            mine = &seats[i];
            break;
        }
    }
    int used = atomic_load(&seats_used), here = (int)(mine - seats) + 1;
    while (used < here && !atomic_compare_exchange_weak(&seats_used, &used, here))
        continue;
    gate_self()->seat = mine;
    pthread_setspecific(at_thread_end, mine);
}

uint64_t seats_launched(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < atomic_load(&seats_used); i++)
        sum += atomic_load(&seats[i].launched);
    return sum;
}

bool seats_are_empty(void)
{
    for (int i = 0; i < atomic_load(&seats_used); i++)
        if (atomic_load(&seats[i].busy))
            return false;
    return true;
}

void seats_wait_until_empty(void)
{
    for (int tries = 0; !seats_are_empty(); tries++)
        sleep_ns(tries < 100 ? 5 * NS_A_US : tries < 1000 ? 50 * NS_A_US : NS_A_MS);
}

void seats_prepare(void)
{
    pthread_key_create(&at_thread_end, stand_up);
}

void seats_after_fork(void)
{
    memset(seats, 0, sizeof seats);
    atomic_store(&seats_used, 0);
}
