/* Commands of the client: memory. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../structs.h"
#include "client.h"

static const char *const kinds[] = {"linear", "pitch", "managed", "create",  "host",  "numa",
                                    "async",  "pool",  "array",   "array3d", "mipmap", "domain"};
enum { BYTE = 1, DEVICE = 1, HOST_LOCATION = 2, NUMA_LOCATION = 3, LOCALITY_DOMAIN = 6, ROW = 1024 };
enum { MANAGED_TYPE = 2 };

static enum kind kind_of(const char *word)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kinds[i], word))
            return (enum kind)i;
    fprintf(stderr, "client: no such kind: %s\n", word);
    abort();
}

static int create(u64 *at, size_t bytes, int location)
{
    struct properties how = {.type = 1, .location = location};
    return cuda.cuMemCreate(at, bytes, &how, 0);
}

static int make(enum kind kind, size_t bytes, u64 *at)
{
    struct array2d flat = {ROW, bytes / ROW, BYTE, 1};
    struct array3d deep = {ROW, ROW, bytes / ROW / ROW, BYTE, 1, 0};
    pointer pool;
    size_t pitch;

    switch (kind) {
    case LINEAR: return cuda.cuMemAlloc(at, bytes);
    case PITCH: return cuda.cuMemAllocPitch(at, &pitch, ROW, bytes / ROW, 4);
    case MANAGED: return cuda.cuMemAllocManaged(at, bytes, 1);
    case CREATE: return create(at, bytes, DEVICE);
    case HOST: return create(at, bytes, HOST_LOCATION);
    case NUMA: return create(at, bytes, NUMA_LOCATION);
    case DOMAIN: return create(at, bytes, LOCALITY_DOMAIN);
    case ASYNC: return cuda.cuMemAllocAsync(at, bytes, NULL);
    case POOL:
        if (cuda.cuDeviceGetDefaultMemPool(&pool, 0))
            return -1;
        return cuda.cuMemAllocFromPoolAsync(at, bytes, pool, NULL);
    case ARRAY: return cuda.cuArrayCreate((pointer *)(void *)at, &flat);
    case ARRAY3D: return cuda.cuArray3DCreate((pointer *)(void *)at, &deep);
    case MIPMAP: return cuda.cuMipmappedArrayCreate((pointer *)(void *)at, &deep, 1);
    }
    return -1;
}

static int drop(enum kind kind, u64 at)
{
    switch (kind) {
    case CREATE:
    case HOST:
    case NUMA:
    case DOMAIN: return cuda.cuMemRelease(at);
    case ASYNC:
    case POOL: return cuda.cuMemFreeAsync(at, NULL);
    case ARRAY:
    case ARRAY3D: return cuda.cuArrayDestroy((pointer)(uintptr_t)at);
    case MIPMAP: return cuda.cuMipmappedArrayDestroy((pointer)(uintptr_t)at);
    default: return cuda.cuMemFree(at);
    }
}

/* "alloc KIND MIB" */
int allocate(char **words, int count, struct answer *to)
{
    enum kind kind = kind_of(words[0]);
    int index = things.memory_count++ % MANY, code;

    (void)count;
    things.memory[index].kind = kind;
    code = make(kind, strtoull(words[1], NULL, 10) << 20, &things.memory[index].at);
    say(to, " %d", index);
    return code;
}

/* "free NUMBER" */
int release(char **words, int count, struct answer *to)
{
    int index = atoi(words[0]) % MANY;

    (void)count, (void)to;
    return drop(things.memory[index].kind, things.memory[index].at);
}

/* "churn KIND MIB ROUNDS": allocates as much as it gets, frees a half at random, and so on; frees all at the
 * end. Says how many were refused, and the result of the first one that was refused for another reason than
 * memory. */
int churn(char **words, int count, struct answer *to)
{
    enum kind kind = kind_of(words[0]);
    size_t bytes = strtoull(words[1], NULL, 10) << 20;
    u64 held[64];
    int have = 0, refused = 0, code = 0;
    unsigned seed = (unsigned)(uintptr_t)held;

    (void)count;
    for (int round = atoi(words[2]); round && !code; round--) {
        for (; have < 64 && !(code = make(kind, bytes, &held[have])); have++)
            continue;
        refused += code == 2;
        code = code == 2 ? 0 : code;
        for (int i = have / 2 + 1; i > 0 && have; i--, have--) {
            int at = (int)(rand_r(&seed) % (unsigned)have);
            code = drop(kind, held[at]) ? -1 : code;
            held[at] = held[have - 1];
        }
    }
    while (have)
        drop(kind, held[--have]);
    say(to, " %d", refused);
    return code;
}

/* "vmm MIB": memory that is mapped and whose handle is released first, as some programs do. Says the free MiB
 * before, with the handle released, and after it was unmapped. */
int vmm(char **words, int count, struct answer *to)
{
    size_t bytes = strtoull(words[0], NULL, 10) << 20, before, mapped, after, total;
    u64 handle, at;
    int code;

    (void)count;
    cuda.cuMemGetInfo(&before, &total);
    code = create(&handle, bytes, DEVICE);
    code = code ? code : cuda.cuMemAddressReserve(&at, bytes, 0, 0, 0);
    code = code ? code : cuda.cuMemMap(at, bytes, 0, handle, 0);
    code = code ? code : cuda.cuMemRelease(handle);
    cuda.cuMemGetInfo(&mapped, &total);
    code = code ? code : cuda.cuMemUnmap(at, bytes);
    cuda.cuMemGetInfo(&after, &total);
    say(to, " %zu %zu %zu", before >> 20, mapped >> 20, after >> 20);
    return code;
}

/* "keep MIB": how much GPU 0's default pool keeps of what is freed; "keep none" gives back what it kept, too
 */
int keep(char **words, int count, struct answer *to)
{
    u64 bytes = strtoull(words[0], NULL, 10) << 20;
    pointer pool;
    int code = cuda.cuDeviceGetDefaultMemPool(&pool, 0);

    (void)count, (void)to;
    code = code ? code : cuda.cuMemPoolSetAttribute(pool, 4, &bytes);
    return code || strcmp(words[0], "none") ? code : cuda.cuMemPoolTrimTo(pool, 0);
}

/* "ownpool MIB device|host|managed": an allocation from a pool of its own, there. Says the free MiB with it, with the
 * pool destroyed, and with the allocation freed. */
int own_pool(char **words, int count, struct answer *to)
{
    struct {
        int type, handle_types, location, id;
        char rest[72];
    } how = {1, 0, strcmp(words[1], "host") ? DEVICE : HOST_LOCATION, 0, ""};
    size_t alive, orphaned, after, total;
    pointer pool;
    u64 at;
    int code;

    if (!strcmp(words[1], "managed"))
        how.type = MANAGED_TYPE, how.location = 0;
    code = cuda.cuMemPoolCreate(&pool, &how);

    (void)count;
    code = code ? code : cuda.cuMemAllocFromPoolAsync(&at, strtoull(words[0], NULL, 10) << 20, pool, NULL);
    cuda.cuMemGetInfo(&alive, &total);
    code = code ? code : cuda.cuMemPoolDestroy(pool);
    cuda.cuMemGetInfo(&orphaned, &total);
    code = code ? code : cuda.cuMemFreeAsync(at, NULL);
    cuda.cuMemGetInfo(&after, &total);
    say(to, " %zu %zu %zu", alive >> 20, orphaned >> 20, after >> 20);
    return code;
}

int tell_info(char **words, int count, struct answer *to)
{
    size_t free_bytes = 0, total = 0;
    int code = cuda.cuMemGetInfo(&free_bytes, &total);

    (void)words, (void)count;
    say(to, " %zu %zu", free_bytes >> 20, total >> 20);
    return code;
}

int tell_total(char **words, int count, struct answer *to)
{
    size_t total = 0;
    int code = cuda.cuDeviceTotalMem(&total, count ? atoi(words[0]) : 0);

    say(to, " %zu", total >> 20);
    return code;
}

/* "nvml INDEX": total and used MiB, as NVML says */
int tell_nvml(char **words, int count, struct answer *to)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW), *handle;
    int (*init)(void) = library ? (int (*)(void))dlsym(library, "nvmlInit_v2") : NULL;
    int (*by_index)(unsigned, void **) =
        library ? (int (*)(unsigned, void **))dlsym(library, "nvmlDeviceGetHandleByIndex_v2") : NULL;
    int (*info)(void *, void *) =
        library ? (int (*)(void *, void *))dlsym(library, "nvmlDeviceGetMemoryInfo") : NULL;
    struct {
        unsigned long long total, free, used;
    } memory = {0};
    int code;

    (void)count;
    if (!init || !by_index || !info)
        return -1;
    code = init();
    code = code ? code : by_index((unsigned)atoi(words[0]), &handle);
    code = code ? code : info(handle, &memory);
    say(to, " %llu %llu", memory.total >> 20, memory.used >> 20);
    return code;
}
