/* The job's use of memory, and whether more of it fits under the cap.
 *
 * A charge is written first, then the sum over all rows is taken, and only then is the memory requested. So two
 * processes that charge at once never both pass, even if one of them goes without the lock because its holder is
 * stopped. The lock only prevents that both are refused. */
#include "cap.h"

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

/* The sum over all rows, including those of dead processes. */
static uint64_t sum(struct job_file *file, int gpu)
{
    uint64_t total = 0;
    uint32_t rows = rows_of(file);
    for (uint32_t row = 0; row < rows; row++)
        total = plus(total, atomic_load(&file->processes[row].charged[gpu]));
    return total;
}

/* The sum over the rows of living processes. With the lock the others are cleared: no new process can own one meanwhile. */
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

/* Whether the present charges fit. */
static bool fits(struct job_file *file, int gpu, bool locked)
{
    uint64_t limit = 0, overhead = atomic_load(&file->overhead[gpu]);
    job_limit(gpu, &limit);
    uint64_t room = overhead < limit ? limit - overhead : 0;
    return sum(file, gpu) <= room || sum_of_living(file, gpu, locked) <= room;
}

static void add(struct job_file *file, int gpu, uint64_t bytes)
{
    atomic_fetch_add(&file->processes[job_row_now()].charged[gpu], bytes);
}

static void take_back(struct job_file *file, int gpu, uint64_t bytes)
{
    atomic_fetch_sub(&file->processes[job_row_now()].charged[gpu], bytes);
}

enum verdict quota_charge(int gpu, uint64_t bytes)
{
    uint64_t limit;
    if (bytes == 0 || !job_limit(gpu, &limit))
        return NO_CAP;
    struct job_file *file = job();
    if (job_row() < 0)
        return NOT_COUNTED;
    if (bytes > limit)
        return REFUSED;
    bool locked = job_lock();
    fault("quota-locked");
    add(file, gpu, bytes);
    bool is_within = fits(file, gpu, locked);
    if (is_within) {
        fault("quota-charged");
        raise_peak(file, gpu, locked);
    } else
        take_back(file, gpu, bytes);
    job_unlock(locked);
    return is_within ? CHARGED : REFUSED;
}

void quota_credit(int gpu, uint64_t bytes)
{
    struct job_file *file = job_seen();
    if (file == NULL || gpu < 0 || gpu >= JOB_MAX_GPUS || bytes == 0 || job_row() < 0)
        return;
    take_back(file, gpu, bytes);
}

void quota_overdraw(int gpu, uint64_t bytes)
{
    struct job_file *file = job();
    if (file == NULL || job_row() < 0)
        return;
    bool locked = job_lock();
    add(file, gpu, bytes);
    job_unlock(locked);
}

void quota_count(size_t counter)
{
    struct job_file *file = job_seen();
    if (file != NULL)
        atomic_fetch_add((_Atomic uint64_t *)((char *)&file->counters + counter), 1);
}

uint64_t quota_used(int gpu)
{
    struct job_file *file = job_seen();
    if (file == NULL || gpu < 0 || gpu >= JOB_MAX_GPUS)
        return 0;
    bool locked = job_lock();
    uint64_t used = plus(sum_of_living(file, gpu, locked), atomic_load(&file->overhead[gpu]));
    job_unlock(locked);
    return used;
}
