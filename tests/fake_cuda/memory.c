/* Memory of a GPU: addresses are those of pages of this process, so that copies really copy. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"
#include "structs.h"

enum { PAGE = 4096, PITCH = 512, GRANULARITY = 2 << 20, ON_DEVICE = 1 };

enum what { LINEAR, HANDLE, ARRAY, MIPMAPPED, HOST_MEMORY, RESERVED };

struct block {
    struct block *next;
    struct context *context;
    enum what what;
    u64 bytes, charged;
    int ordinal, references, maps;
    void *at;          /* also the handle */
    struct pool *pool; /* whose it is, if it is allocated in stream order */
};

static struct block *blocks; /* with `lock` */

static struct block *find(const void *at, enum what what)
{
    for (struct block *b = blocks; b; b = b->next)
        if (b->at == at && b->what == what)
            return b;
    return NULL;
}

static void *pages(u64 bytes)
{
    void *at = mmap(NULL, (bytes + PAGE - 1) / PAGE * PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static bool has_pages(const struct block *b)
{
    return b->what == LINEAR || b->what == HOST_MEMORY || b->what == RESERVED;
}

/* With `lock`. */
static int allocate(struct block **to, struct context *context, int ordinal, enum what what, u64 bytes,
                    u64 charged)
{
    struct block *b;

    if (charged && take_memory(ordinal, charged) != SUCCESS)
        return OUT_OF_MEMORY;
    b = calloc(1, sizeof *b);
    *b = (struct block){.next = blocks,
                        .context = context,
                        .what = what,
                        .bytes = bytes,
                        .charged = charged,
                        .ordinal = ordinal,
                        .references = 1};
    b->at = has_pages(b) ? pages(bytes) : b;
    if (!b->at) {
        give_memory(ordinal, charged);
        free(b);
        return OUT_OF_MEMORY;
    }
    blocks = b;
    *to = b;
    return SUCCESS;
}

static void drop(struct block *b)
{
    struct block **at = &blocks;

    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    give_memory(b->ordinal, b->charged);
    if (b->pool)
        give_to_pool(b->pool, b->bytes);
    if (has_pages(b))
        munmap(b->at, (b->bytes + PAGE - 1) / PAGE * PAGE);
    free(b);
}

void forget_memory(struct context *context)
{
    struct block *b = blocks, *next;

    for (; b; b = next) {
        next = b->next;
        if (b->context == context)
            drop(b);
    }
}

bool is_device_memory(const void *address, u64 bytes)
{
    uintptr_t from = (uintptr_t)address;
    bool is = false;

    pthread_mutex_lock(&lock);
    for (struct block *b = blocks; b && !is; b = b->next)
        is = has_pages(b) && from >= (uintptr_t)b->at && bytes <= b->bytes &&
             from - (uintptr_t)b->at <= b->bytes - bytes;
    pthread_mutex_unlock(&lock);
    return is;
}

/* An allocation in the current context. A capture allows the ordered ones only. */
static int make(struct call *c, void **to, enum what what, u64 bytes, bool in_capture)
{
    struct context *context = current_context();
    struct block *b;
    int code;

    c->bytes = bytes;
    if (!context)
        return INVALID_CONTEXT;
    if (!to || !bytes)
        return INVALID_VALUE;
    c->gpu = gpus[context->ordinal].index;
    pthread_mutex_lock(&lock);
    code = in_capture ? SUCCESS : unsafe_call();
    if (code == SUCCESS)
        code = allocate(&b, context, context->ordinal, what, bytes, what == HOST_MEMORY ? 0 : bytes);
    if (code == SUCCESS)
        *to = b->at;
    pthread_mutex_unlock(&lock);
    return code;
}

static int release(struct call *c, void *at, enum what what, bool in_capture)
{
    struct block *b;
    int code;

    if (!at && what == LINEAR)
        return SUCCESS;
    pthread_mutex_lock(&lock);
    b = find(at, what);
    code = !b ? INVALID_VALUE : in_capture ? SUCCESS : unsafe_call();
    if (code == SUCCESS) {
        c->bytes = b->bytes;
        c->gpu = gpus[b->ordinal].index;
        if (--b->references <= 0 && !b->maps)
            drop(b);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int make_pitched(struct call *c, void **to, size_t *pitch, size_t width, size_t height)
{
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return make(c, to, LINEAR, *pitch * height, false);
}

static u64 array_bytes(size_t width, size_t height, size_t depth, int format, unsigned channels)
{
    u64 size = format == 0x03 || format == 0x0a || format == 0x20   ? 4
               : format == 0x02 || format == 0x09 || format == 0x10 ? 2
                                                                    : 1;
    return width * (height ? height : 1) * (depth ? depth : 1) * size * (channels ? channels : 1);
}

static u64 bytes_of(const struct array3d *how, unsigned levels)
{
    u64 sum = 0;

    for (unsigned i = 0; i < levels; i++)
        sum += array_bytes(how->width >> i ? how->width >> i : 1, how->height >> i, how->depth >> i,
                           how->format, how->channels);
    return sum;
}

/* Physical memory, which belongs to no context. On the host it takes nothing of a GPU. */
static int make_physical(struct call *c, u64 *to, u64 bytes, const struct properties *how)
{
    bool on_device = how && !is_host_location(how->location);
    int ordinal = how && how->location == ON_DEVICE ? how->id : 0;
    struct block *b;
    int code;

    c->bytes = bytes;
    if (!how || !bytes || bytes % GRANULARITY)
        return INVALID_VALUE;
    if (on_device && (ordinal < 0 || ordinal >= gpu_count))
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    code = allocate(&b, NULL, ordinal, HANDLE, bytes, on_device ? bytes : 0);
    if (code == SUCCESS) {
        *to = (u64)(uintptr_t)b;
        c->gpu = on_device ? gpus[ordinal].index : -1;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int reserve(struct call *c, u64 *to, size_t bytes)
{
    struct block *b;
    int code;

    c->bytes = bytes;
    pthread_mutex_lock(&lock);
    code = allocate(&b, NULL, 0, RESERVED, bytes, 0);
    if (code == SUCCESS)
        *to = (u64)(uintptr_t)b->at;
    pthread_mutex_unlock(&lock);
    return code;
}

/* One range of a reservation at a time is enough for tests: a mapping is noted at the handle, by its address.
 */
struct mapping {
    struct mapping *next;
    u64 address;
    struct block *block;
};
static struct mapping *mappings;

static int map(u64 address, u64 handle)
{
    struct block *b;
    struct mapping *m;

    pthread_mutex_lock(&lock);
    b = find((void *)(uintptr_t)handle, HANDLE);
    if (b) {
        b->maps++;
        m = calloc(1, sizeof *m);
        *m = (struct mapping){mappings, address, b};
        mappings = m;
    }
    pthread_mutex_unlock(&lock);
    return b ? SUCCESS : INVALID_VALUE;
}

static int unmap(u64 address, size_t bytes)
{
    struct mapping **at = &mappings, *m;
    int code = INVALID_VALUE;

    pthread_mutex_lock(&lock);
    while ((m = *at))
        if (m->address >= address && m->address < address + bytes) {
            *at = m->next;
            if (--m->block->maps <= 0 && m->block->references <= 0)
                drop(m->block);
            free(m);
            code = SUCCESS;
        } else {
            at = &m->next;
        }
    pthread_mutex_unlock(&lock);
    return code;
}

static int retain(u64 *to, void *address)
{
    int code = INVALID_VALUE;

    pthread_mutex_lock(&lock);
    for (struct mapping *m = mappings; m; m = m->next)
        if (address >= (void *)(uintptr_t)m->address &&
            (u64)(uintptr_t)address < m->address + m->block->bytes) {
            m->block->references++;
            *to = (u64)(uintptr_t)m->block;
            code = SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return code;
}

static int give_info(size_t *free_bytes, size_t *total)
{
    struct context *context = current_context();

    if (!context)
        return INVALID_CONTEXT;
    *free_bytes = free_memory(context->ordinal);
    *total = gpus[context->ordinal].bytes;
    return SUCCESS;
}

static int make_from_pool(struct call *c, void **to, u64 bytes, struct pool *pool)
{
    struct block *b;
    int code;

    c->bytes = bytes;
    if (!pool || !bytes)
        return INVALID_VALUE;
    c->gpu = gpus[ordinal_of_pool(pool)].index;
    pthread_mutex_lock(&lock);
    code = take_from_pool(pool, bytes);
    if (code == SUCCESS && (code = allocate(&b, NULL, ordinal_of_pool(pool), LINEAR, bytes, 0)) != SUCCESS)
        give_to_pool(pool, bytes);
    if (code == SUCCESS) {
        b->pool = pool;
        *to = b->at;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int make_ordered(struct call *c, void **to, u64 bytes)
{
    struct context *context = current_context();

    return context ? make_from_pool(c, to, bytes, default_pool(context->ordinal)) : INVALID_CONTEXT;
}

static int give_range(u64 *base, size_t *bytes, u64 at)
{
    int code = NOT_FOUND;

    pthread_mutex_lock(&lock);
    for (struct block *b = blocks; b; b = b->next)
        if (has_pages(b) && at >= (u64)(uintptr_t)b->at && at < (u64)(uintptr_t)b->at + b->bytes) {
            *base = (u64)(uintptr_t)b->at;
            *bytes = b->bytes;
            code = SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return code;
}

/* Of memory that the driver knows: the GPU's, and what of the host it pinned. All else is pageable. */
static int tell_memory_type(unsigned *to, int which, u64 at)
{
    enum { MEMORY_TYPE = 2, ON_HOST = 1, ON_GPU = 2 };
    int code = INVALID_VALUE;

    pthread_mutex_lock(&lock);
    for (struct block *b = blocks; b && which == MEMORY_TYPE; b = b->next)
        if (has_pages(b) && at >= (u64)(uintptr_t)b->at && at < (u64)(uintptr_t)b->at + b->bytes) {
            *to = b->what == HOST_MEMORY ? ON_HOST : ON_GPU;
            code = SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return code;
}

#define A(address) ((void **)(void *)(address))
#define P(address) ((void *)(uintptr_t)(address))

API(cuMemAlloc, (unsigned *to, unsigned bytes), (void)to, (void)bytes, NOT_SUPPORTED)
API(cuMemAlloc_v2, (u64 * to, size_t bytes), make(&c, A(to), LINEAR, bytes, false))
API(cuMemAllocPitch_v2, (u64 * to, size_t *pitch, size_t width, size_t height, unsigned element),
    (void)element, make_pitched(&c, A(to), pitch, width, height))
API(cuMemAllocManaged, (u64 * to, size_t bytes, unsigned flags), (void)flags,
    make(&c, A(to), LINEAR, bytes, false))
API(cuMemAllocHost_v2, (void **to, size_t bytes), make(&c, to, HOST_MEMORY, bytes, false))
API(cuMemHostAlloc, (void **to, size_t bytes, unsigned flags), (void)flags,
    make(&c, to, HOST_MEMORY, bytes, false))
API(cuMemFreeHost, (void *at), release(&c, at, HOST_MEMORY, false))
API(cuMemFree, (unsigned at), (void)at, NOT_SUPPORTED)
API(cuMemFree_v2, (u64 at), release(&c, P(at), LINEAR, false))
BOTH(cuMemAllocAsync, _ptsz, (u64 * to, size_t bytes, void *s), (void)s, make_ordered(&c, A(to), bytes))
BOTH(cuMemAllocFromPoolAsync, _ptsz, (u64 * to, size_t bytes, void *pool, void *s), (void)s,
     make_from_pool(&c, A(to), bytes, pool))
BOTH(cuMemFreeAsync, _ptsz, (u64 at, void *s), (void)s, release(&c, P(at), LINEAR, true))
API(cuMemCreate, (u64 * to, size_t bytes, const struct properties *how, u64 flags), (void)flags,
    make_physical(&c, to, bytes, how))
API(cuMemRelease, (u64 handle), release(&c, P(handle), HANDLE, true))
API(cuMemRetainAllocationHandle, (u64 * to, void *address), retain(to, address))
API(cuMemAddressReserve, (u64 * to, size_t bytes, size_t alignment, u64 at, u64 flags), (void)alignment,
    (void)at, (void)flags, reserve(&c, to, bytes))
API(cuMemAddressFree, (u64 at, size_t bytes), (void)bytes, release(&c, P(at), RESERVED, true))
API(cuMemMap, (u64 at, size_t bytes, size_t offset, u64 handle, u64 flags), (void)bytes, (void)offset,
    (void)flags, map(at, handle))
BOTH(cuMemMapArrayAsync, _ptsz, (void *list, unsigned count, void *s), (void)list, (void)count, (void)s,
     SUCCESS)
API(cuMemUnmap, (u64 at, size_t bytes), unmap(at, bytes))
API(cuMemSetAccess, (u64 at, size_t bytes, const void *how, size_t count), (void)at, (void)bytes, (void)how,
    (void)count, SUCCESS)
API(cuMemGetAllocationGranularity, (size_t *to, const void *how, int which), (void)how, (void)which,
    *to = GRANULARITY, SUCCESS)
API(cuMemGetInfo, (unsigned *free_bytes, unsigned *total), (void)free_bytes, (void)total, NOT_SUPPORTED)
API(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total), give_info(free_bytes, total))
API(cuPointerGetAttribute, (unsigned *to, int which, u64 at), tell_memory_type(to, which, at))
API(cuMemGetAddressRange_v2, (u64 * base, size_t *bytes, u64 at), give_range(base, bytes, at))
API(cuArrayCreate_v2, (void **to, const struct array2d *how),
    make(&c, to, ARRAY, array_bytes(how->width, how->height, 0, how->format, how->channels), false))
API(cuArray3DCreate_v2, (void **to, const struct array3d *how), make(&c, to, ARRAY, bytes_of(how, 1), false))
API(cuArrayDestroy, (void *array), release(&c, array, ARRAY, false))
API(cuMipmappedArrayCreate, (void **to, const struct array3d *how, unsigned levels),
    make(&c, to, MIPMAPPED, bytes_of(how, levels), false))
API(cuMipmappedArrayDestroy, (void *array), release(&c, array, MIPMAPPED, false))
