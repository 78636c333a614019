/* What pools of stream-ordered allocation are charged.
 *
 * A pool keeps memory that was freed, up to its release threshold, and serves later allocations from it. That is in use
 * as far as the card goes. So a pool is charged what lives in it, or what it will keep if that is more: an allocation
 * from what it keeps costs nothing, and a free that it keeps gives nothing back. Before an allocation is refused, the
 * pools of the process are trimmed, as the driver does it when a card is full. */
#include "cap.h"

#include <pthread.h>
#include <string.h>

enum {
    POOLS = 64,
    THRESHOLD = 4, RESERVED = 5 /* CUmemPool_attribute */
};

struct pool {
    uint64_t handle; /* 0: it was destroyed, or there was none */
    uint64_t live;
    uint64_t charged; /* never less than live */
    int gpu;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER; /* never held while memory is asked for */
static struct pool pools[POOLS];

/* A thread that is cancelled in a function of the driver's must not leave with the guard. */
static int cancel_state;

static void hold(void)
{
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_mutex_lock(&guard);
    cancel_state = state;
}

static void leave(void)
{
    int state = cancel_state;
    pthread_mutex_unlock(&guard);
    pthread_setcancelstate(state, NULL);
}

static bool attribute(uint64_t handle, int name, uint64_t *value)
{
    static _Atomic(void *) known;
    void *real = driver_once(&known, "cuMemPoolGetAttribute");
    long a[ARGUMENTS] = {(long)handle, name, (long)value};
    return real != NULL && (int)call(real, a) == CUDA_SUCCESS;
}

/* Charge the pool what it holds and will keep. What does not fit under the cap any more is left to the supervisor. */
static void settle(struct pool *pool)
{
    uint64_t reserved = 0, threshold = 0;
    uint64_t target = pool->live;
    if (pool->handle != 0 && attribute(pool->handle, RESERVED, &reserved) &&
        attribute(pool->handle, THRESHOLD, &threshold)) {
        uint64_t kept = reserved < threshold ? reserved : threshold;
        target = kept > target ? kept : target;
    }
    if (target < pool->charged)
        quota_credit(pool->gpu, pool->charged - target);
    else if (target > pool->charged && quota_charge(pool->gpu, target - pool->charged) != CHARGED)
        return;
    pool->charged = target;
}

static bool trim(int gpu)
{
    void *real = driver("cuMemPoolTrimTo");
    bool is_less = false;
    for (struct pool *pool = pools; pool < pools + POOLS; pool++) {
        uint64_t before = pool->charged;
        if (pool->gpu != gpu || before == pool->live)
            continue;
        long a[ARGUMENTS] = {(long)pool->handle, 0};
        if (pool->handle != 0 && real != NULL)
            call(real, a);
        settle(pool);
        is_less = is_less || pool->charged < before;
    }
    return is_less;
}

bool pools_trim(int gpu)
{
    hold();
    bool is_less = trim(gpu);
    leave();
    return is_less;
}

static int place_of(uint64_t handle)
{
    for (int place = 0; place < POOLS; place++)
        if (pools[place].handle == handle)
            return place;
    return NO_POOL;
}

/* Its place, and a new one if it has none; NO_POOL: all are taken. */
static int enter(uint64_t handle, int gpu)
{
    int place = place_of(handle);
    for (int next = 0; place == NO_POOL && next < POOLS; next++)
        if (pools[next].handle == 0 && pools[next].live == 0) {
            pools[next] = (struct pool){.handle = handle, .gpu = gpu};
            place = next;
        }
    return place;
}

/* Charge what the pool does not keep already. `*grown`: how much that was. */
static enum verdict grow(struct pool *pool, uint64_t bytes, uint64_t *grown)
{
    enum verdict verdict = CHARGED;
    for (int tries = 0; tries < 2; tries++) {
        uint64_t kept = pool->charged - pool->live;
        *grown = bytes > kept ? bytes - kept : 0;
        verdict = *grown == 0 ? CHARGED : quota_charge(pool->gpu, *grown);
        if (verdict != REFUSED || !trim(pool->gpu))
            break;
    }
    if (verdict == CHARGED) {
        pool->live += bytes;
        pool->charged += *grown;
    } else if (verdict == REFUSED) {
        quota_count_refused();
    }
    return verdict;
}

static void shrink(struct pool *pool, uint64_t bytes)
{
    pool->live -= bytes < pool->live ? bytes : pool->live;
    if (pool->charged != pool->live)
        settle(pool);
}

void pools_freed(const struct held *what)
{
    if (what->pool < 0 || what->pool >= POOLS)
        return;
    hold();
    shrink(&pools[what->pool], what->bytes);
    leave();
}

/* The place of an allocation that is charged now, or why it is not. */
enum verdict pools_charge(uint64_t handle, int gpu, uint64_t bytes, int *place, uint64_t *grown)
{
    enum verdict verdict = NOT_COUNTED;
    hold();
    *place = enter(handle, gpu);
    if (*place != NO_POOL)
        verdict = grow(&pools[*place], bytes, grown);
    leave();
    return verdict;
}

void pools_settle(int place)
{
    hold();
    settle(&pools[place]);
    leave();
}

int pools_find(uint64_t handle, int *gpu)
{
    hold();
    int place = handle == 0 ? NO_POOL : place_of(handle);
    if (place != NO_POOL)
        *gpu = pools[place].gpu;
    leave();
    return place;
}

void pools_made(uint64_t handle, int gpu)
{
    hold();
    enter(handle, gpu);
    leave();
}

void pools_rename(int place, uint64_t handle)
{
    hold();
    pools[place].handle = handle;
    leave();
}

void pools_gone(int gpu)
{
    struct held what;
    size_t from = 0;
    if (gpu < 0)
        return;
    hold();
    while (held_take_linked(KIND_ADDRESS, POOLED | (unsigned)gpu, &from, &what))
        if (what.pool == NO_POOL)
            quota_credit(gpu, what.bytes);
    for (struct pool *pool = pools; pool < pools + POOLS; pool++)
        if (pool->gpu == gpu) {
            quota_credit(gpu, pool->charged);
            *pool = (struct pool){.handle = 0};
        }
    leave();
}

void pools_after_fork(void)
{
    mutex_after_fork(&guard);
    memset(pools, 0, sizeof pools);
}
