/* Processes that share a GPU take turns in slices of time, as the real driver lets them (FAKE_CUDA_SERIAL=1).
 *
 * Each process has one queue a GPU. Whoever looks works out what the GPU has done up to now, for all of them.
 */
#include <time.h>

#include "fake.h"

static const i64 PROBE_NS = 5000000;

static i64 slice_ns(void)
{
    static i64 slice;
    return slice ? slice : (slice = (i64)setting("FAKE_CUDA_SLICE_US", 2000) * 1000);
}

static struct queue *queue_of(int row, int index)
{
    return &shared->rows[row].queues[index];
}

static bool has_work(int row, int index)
{
    struct queue *q = queue_of(row, index);
    return shared->rows[row].pid && q->done < q->submitted;
}

/* What dead processes left is dropped. */
static void drop_dead(int index, i64 now)
{
    struct engine *e = &shared->engines[index];

    if (now - e->probed < PROBE_NS)
        return;
    e->probed = now;
    for (int i = 0; i < ROWS; i++)
        if (has_work(i, index) && !row_lives(i))
            queue_of(i, index)->done = queue_of(i, index)->submitted;
}

static bool choose_next(int index)
{
    struct engine *e = &shared->engines[index];

    if (e->slice_left > 0 && has_work(e->current, index))
        return true;
    e->slice_left = slice_ns();
    for (int i = 1; i <= ROWS; i++)
        if (has_work((e->current + i) % ROWS, index)) {
            e->current = (e->current + i) % ROWS;
            return true;
        }
    return false;
}

static void advance(int index, i64 now)
{
    struct engine *e = &shared->engines[index];
    struct queue *q;
    struct piece *piece;
    i64 step;

    drop_dead(index, now);
    while (e->clock < now && choose_next(index)) {
        q = queue_of(e->current, index);
        piece = &q->pieces[q->done % DEPTH];
        if (!piece->from)
            piece->from = e->clock;
        step = piece->left < e->slice_left ? piece->left : e->slice_left;
        step = step < now - e->clock ? step : now - e->clock;
        e->clock += step;
        e->slice_left -= step;
        piece->left -= step;
        if (!piece->left) {
            piece->to = e->clock;
            q->done++;
        }
    }
    if (e->clock < now)
        e->clock = now;
}

u64 serial_submit(int gpu, i64 duration)
{
    int index = gpus[gpu].index;
    struct queue *q = queue_of(my_row, index);
    const struct timespec pause = {.tv_nsec = 100000};
    u64 number;

    for (;;) {
        lock_shared();
        advance(index, now_ns());
        if (q->submitted - q->done < DEPTH / 2)
            break;
        unlock_shared();
        nanosleep(&pause, NULL);
    }
    number = q->submitted;
    q->pieces[number % DEPTH] = (struct piece){.left = duration};
    q->submitted++;
    unlock_shared();
    return number;
}

bool serial_look(int gpu, u64 number, i64 *from, i64 *to)
{
    int index = gpus[gpu].index;
    struct queue *q = queue_of(my_row, index);
    bool is_done;

    lock_shared();
    advance(index, now_ns());
    is_done = number < q->done;
    if (is_done) {
        *from = q->pieces[number % DEPTH].from;
        *to = q->pieces[number % DEPTH].to;
    }
    unlock_shared();
    return is_done;
}
