/* The job's use of memory, and whether more of it fits under the cap.
 *
 * A charge is written before the memory is asked for, and the sum over all rows is taken once more after that. So two
 * processes that charge at once never both pass, even if one of them goes without the lock, because the one that has
 * it is stopped. The lock is there so that neither is refused in vain.
 */
#include "cap.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 4, PAUSE_NS = 200000 };

static uint64_t plus(uint64_t a, uint64_t b)
{
    return a + b < a ? UINT64_MAX : a + b;
}

static uint32_t rows_of(struct job_file *file)
{
    uint32_t rows = atomic_load(&file->rows);
    uint32_t mine = (uint32_t)(job_row_now() + 1);
    rows = rows < mine ? mine : rows;
    return rows < JOB_MAX_PROCESSES ? rows : JOB_MAX_PROCESSES;
}

/* What all rows say, those of dead processes too. */
static uint64_t sum(struct job_file *file, int gpu)
{
    uint64_t total = 0;
    uint32_t rows = rows_of(file);
    for (uint32_t row = 0; row < rows; row++)
        total = plus(total, atomic_load(&file->processes[row].charged[gpu]));
    return total;
}

/* What the rows of living processes say. With the lock, the others are cleared: no new process can own one meanwhile. */
static uint64_t sum_of_living(struct job_file *file, int gpu, bool locked)
{
    uint64_t total = 0;
    uint32_t rows = rows_of(file);
    int mine = job_row_now();
    for (uint32_t row = 0; row < rows; row++) {
        uint64_t charged = atomic_load(&file->processes[row].charged[gpu]);
        if (charged == 0)
            continue;
        if ((int)row == mine || job_row_is_live(row))
            total = plus(total, charged);
        else if (locked)
            atomic_compare_exchange_strong(&file->processes[row].charged[gpu], &charged, 0);
    }
    return total;
}

static void raise_peak(struct job_file *file, int gpu, bool locked)
{
    uint64_t peak = atomic_load(&file->peak[gpu]);
    if (sum(file, gpu) <= peak)
        return;
    uint64_t total = sum_of_living(file, gpu, locked);
    while (total > peak && !atomic_compare_exchange_weak(&file->peak[gpu], &peak, total))
        continue;
}

static bool fits(struct job_file *file, int gpu, uint64_t bytes, uint64_t room, bool locked)
{
    uint64_t used = sum(file, gpu);
    if (used > room || bytes > room - used)
        used = sum_of_living(file, gpu, locked);
    return used <= room && bytes <= room - used;
}

static void add(struct job_file *file, int gpu, uint64_t bytes)
{
    atomic_fetch_add(&job_held[gpu], bytes);
    atomic_fetch_add(&file->processes[job_row_now()].charged[gpu], bytes);
}

static void take_back(struct job_file *file, int gpu, uint64_t bytes)
{
    atomic_fetch_sub(&file->processes[job_row_now()].charged[gpu], bytes);
    atomic_fetch_sub(&job_held[gpu], bytes);
}

/* False: another process charged at the same moment, without the lock. */
static bool charge_once(struct job_file *file, int gpu, uint64_t bytes, bool locked, enum verdict *verdict)
{
    uint64_t limit = 0;
    job_limit(gpu, &limit);
    uint64_t overhead = atomic_load(&file->overhead[gpu]);
    uint64_t room = overhead < limit ? limit - overhead : 0;
    *verdict = REFUSED;
    if (!fits(file, gpu, bytes, room, locked))
        return true;
    fault("quota-fits");
    add(file, gpu, bytes);
    if (!fits(file, gpu, 0, room, locked)) {
        take_back(file, gpu, bytes);
        return false;
    }
    fault("quota-charged");
    raise_peak(file, gpu, locked);
    *verdict = CHARGED;
    return true;
}

enum verdict quota_charge(int gpu, uint64_t bytes)
{
    uint64_t limit;
    if (bytes == 0 || !job_limit(gpu, &limit))
        return NO_CAP;
    struct job_file *file = job();
    int saved = errno;
    int cancel;
    enum verdict verdict = REFUSED;
    bool done = false;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    for (int tries = 0; !done && tries < TRIES; tries++) {
        bool locked = job_lock();
        fault("quota-locked");
        if (job_row_now() < 0) {
            verdict = NOT_COUNTED;
            done = true;
        } else {
            done = charge_once(file, gpu, bytes, locked, &verdict);
        }
        job_unlock(locked);
        if (!done)
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS * (tries + 1) + getpid() % 64 * 1000}, NULL);
    }
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    return verdict;
}

void quota_credit(int gpu, uint64_t bytes)
{
    struct job_file *file = job_seen();
    if (file == NULL || gpu < 0 || gpu >= JOB_MAX_GPUS || bytes == 0 || job_row() < 0)
        return;
    int saved = errno;
    job_hold();
    take_back(file, gpu, bytes);
    job_unlock(false);
    errno = saved;
}

/* Without a look whether the file is whole: the charge that came before it looked. */
static void count(size_t counter)
{
    struct job_file *file = job_seen();
    if (file != NULL)
        atomic_fetch_add((_Atomic uint64_t *)((char *)&file->counters + counter), 1);
}

void quota_count_allocation(void)
{
    count(offsetof(struct job_counters, allocations));
}

void quota_count_refused(void)
{
    count(offsetof(struct job_counters, refused));
}

void quota_count_uncounted(void)
{
    count(offsetof(struct job_counters, uncounted));
}

uint64_t quota_used(int gpu)
{
    struct job_file *file = job_seen();
    if (file == NULL || gpu < 0 || gpu >= JOB_MAX_GPUS)
        return 0;
    int saved = errno;
    bool locked = job_lock();
    uint64_t used = plus(sum_of_living(file, gpu, locked), atomic_load(&file->overhead[gpu]));
    job_unlock(locked);
    errno = saved;
    return used;
}
