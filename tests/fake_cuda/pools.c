/* Memory pools, as the driver's documentation has them. They reserve memory in pieces of POOL_PIECE. What is
 * freed stays reserved until the next sync of a stream, an event or a context, and after that up to the release
 * threshold. No trim gives back what was freed since the last sync. */
#include <stdlib.h>

#include "fake.h"
#include "structs.h"

enum { POOL_PIECE = 2 << 20, MANY = 64 };
enum { THRESHOLD = 4, RESERVED_NOW = 5, USED_NOW = 7, ON_DEVICE = 1 };

struct location {
    int type, id;
};
struct pool_properties {
    int type, handle_types;
    struct location location;
};
struct pool {
    int ordinal;
    bool on_host;
    u64 threshold, live, reserved;
    u64 unobserved; /* freed since the last sync */
};

static struct pool defaults[MAX_GPUS];
static struct pool *made[MANY];
static int made_count;

int ordinal_of_pool(const struct pool *pool)
{
    return pool->ordinal;
}

int take_from_pool(struct pool *pool, u64 bytes)
{
    u64 wanted = pool->live + bytes;
    u64 reserved = (wanted + POOL_PIECE - 1) / POOL_PIECE * POOL_PIECE;

    if (reserved > pool->reserved) {
        if (!pool->on_host && take_memory(pool->ordinal, reserved - pool->reserved) != SUCCESS)
            return OUT_OF_MEMORY;
        pool->reserved = reserved;
    }
    pool->unobserved = pool->unobserved > bytes ? pool->unobserved - bytes : 0;
    pool->live = wanted;
    return SUCCESS;
}

static void shrink(struct pool *pool, u64 keep)
{
    u64 least = pool->live + pool->unobserved;
    u64 to = (keep > least ? keep : least) / POOL_PIECE * POOL_PIECE;

    if (to < least)
        to += POOL_PIECE;
    if (to >= pool->reserved)
        return;
    if (!pool->on_host)
        give_memory(pool->ordinal, pool->reserved - to);
    pool->reserved = to;
}

void give_to_pool(struct pool *pool, u64 bytes)
{
    pool->live -= bytes;
    pool->unobserved += bytes;
}

static void observe(struct pool *pool)
{
    pool->unobserved = 0;
    shrink(pool, pool->threshold);
}

void observe_frees(void)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < gpu_count; i++)
        observe(&defaults[i]);
    for (int i = 0; i < made_count; i++)
        observe(made[i]);
    pthread_mutex_unlock(&lock);
}

struct pool *default_pool(int ordinal)
{
    if (ordinal < 0 || ordinal >= gpu_count)
        return NULL;
    defaults[ordinal].ordinal = ordinal;
    return &defaults[ordinal];
}

static int give_pool(void **to, int ordinal)
{
    *to = default_pool(ordinal);
    return *to ? SUCCESS : INVALID_DEVICE;
}

static int make_pool(void **to, const struct pool_properties *how)
{
    struct pool *pool = how && made_count < MANY ? calloc(1, sizeof *pool) : NULL;

    if (!pool)
        return INVALID_VALUE;
    pool->on_host = is_host_location(how->location.type);
    pool->ordinal = how->location.type == ON_DEVICE ? how->location.id : 0;
    made[made_count++] = pool;
    *to = pool;
    return SUCCESS;
}

static int trim_pool(struct pool *pool, u64 keep)
{
    if (!pool)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    shrink(pool, keep);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* Never freed: what lives in it outlives it. */
static int destroy_pool(struct pool *pool)
{
    if (!pool)
        return INVALID_VALUE;
    pool->threshold = 0;
    return trim_pool(pool, 0);
}

static int give_attribute(const struct pool *pool, int which, u64 *to)
{
    *to = which == THRESHOLD      ? pool->threshold
          : which == RESERVED_NOW ? pool->reserved
          : which == USED_NOW     ? pool->live
                                  : 0;
    return SUCCESS;
}

static int set_attribute(struct pool *pool, int which, const u64 *value)
{
    if (which == THRESHOLD)
        pool->threshold = *value;
    return SUCCESS;
}

API(cuDeviceGetDefaultMemPool, (void **to, int ordinal), give_pool(to, ordinal))
API(cuDeviceGetMemPool, (void **to, int ordinal), give_pool(to, ordinal))
API(cuDeviceSetMemPool, (int ordinal, void *pool), (void)ordinal, (void)pool, SUCCESS)
API(cuMemPoolCreate, (void **to, const struct pool_properties *how), make_pool(to, how))
API(cuMemPoolDestroy, (void *pool), destroy_pool(pool))
API(cuMemPoolTrimTo, (void *pool, size_t bytes), trim_pool(pool, bytes))
API(cuMemPoolSetAttribute, (void *pool, int which, const void *value), set_attribute(pool, which, value))
API(cuMemPoolGetAttribute, (void *pool, int which, void *value), give_attribute(pool, which, value))
