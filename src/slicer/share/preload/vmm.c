/* Memory that is created by handle and mapped by address: cuMemCreate, cuMemMap.
 *
 * It is free when its last handle has been released and its last mapping is gone: programs release the handle as soon as
 * the memory is mapped. So handles and mappings point to a block, which is charged and counts them. */
#include "cap.h"

#include <string.h>

/* The beginning of CUmemAllocationProp and CUmemPoolProps, and some of their values. */
struct properties {
    int type, handle_types, location, id;
};
enum { TYPE_MANAGED = 2, ON_DEVICE = 1, ON_HOST = 2, ON_HOST_NUMA = 3, ON_HOST_NUMA_CURRENT = 4 };

static _Atomic uint64_t last_block;

static void leave_block(uint64_t block)
{
    struct held what;
    if (block != 0 && held_add(KIND_BLOCK, block, -1, &what) && what.count == 0)
        forgotten(&what);
}

/* Both, or neither. */
static bool put_handle(struct held what)
{
    struct held old;
    struct held block = {.kind = KIND_BLOCK, .key = atomic_fetch_add(&last_block, 1) + 1, .bytes = what.bytes, .count = 1,
                         .gpu = what.gpu};
    what.link = block.key;
    what.count = 1;
    what.bytes = 0; /* they belong to the block */
    if (!held_put(block, &old))
        return false;
    if (!held_put(what, &old)) {
        held_take(KIND_BLOCK, block.key, &block);
        return false;
    }
    if (old.kind != KIND_NONE)
        leave_block(old.link); /* released in a way that is not known here */
    return true;
}

static void remember_handle(struct held what)
{
    if (put_handle(what)) {
        quota_count(ALLOCATIONS);
        return;
    }
    quota_credit(what.gpu, what.bytes);
    say_not_counted();
}

/* Only locations of the host are listed: all others, including those of later drivers, are on a GPU. Managed memory
 * counts where it is created, wherever it moves. */
int gpu_of_properties(const void *properties)
{
    struct properties given;
    memcpy(&given, properties, sizeof given);
    if (given.location == ON_DEVICE)
        return job_gpu(given.id);
    if (given.type != TYPE_MANAGED && given.location >= ON_HOST && given.location <= ON_HOST_NUMA_CURRENT)
        return GPU_IS_HOST;
    return job_gpu_current();
}

/* cuMemCreate(*handle, size, *prop, flags) */
long on_mem_create(void *real, long *a)
{
    if (!is_capped() || a[2] == 0)
        return call(real, a);
    struct held what = {.kind = KIND_HANDLE, .bytes = (uint64_t)a[1]};
    what.gpu = gpu_of_properties((const void *)a[2]);
    return what.gpu == GPU_IS_HOST ? call(real, a) : charged_call(real, a, what, remember_handle);
}

/* Calls that add a reference to a handle: cuMemRetainAllocationHandle(*handle, address),
 * cuMemImportFromShareableHandle(*handle, …). Memory that other processes created is charged there, and unknown here. */
long on_mem_retain(void *real, long *a)
{
    long result = call(real, a);
    uint64_t handle;
    struct held what;
    if ((int)result == CUDA_SUCCESS && is_capped()) {
        memcpy(&handle, (void *)a[0], sizeof handle);
        held_add(KIND_HANDLE, handle, 1, &what);
    }
    return result;
}

long on_mem_release(void *real, long *a)
{
    struct held what;
    bool is_known = is_capped() && held_add(KIND_HANDLE, (uint64_t)a[0], -1, &what);
    long result = call(real, a);
    if (is_known && what.count == 0)
        leave_block(what.link);
    return result;
}

static void put_mapping(uint64_t address, uint64_t bytes, uint64_t handle)
{
    struct held block = {.kind = KIND_NONE};
    struct held old;
    struct held made = {.kind = KIND_MAPPING, .key = address, .bytes = bytes, .gpu = -1};
    if (held_add(KIND_HANDLE, handle, 0, &made) && held_add(KIND_BLOCK, made.link, 1, &block))
        made = (struct held){.kind = KIND_MAPPING, .key = address, .bytes = bytes, .link = block.key, .gpu = block.gpu};
    if (!held_put(made, &old))
        leave_block(made.link); /* then it is credited with its handle */
    else if (old.kind != KIND_NONE)
        leave_block(old.link);
}

/* cuMemMap(address, size, offset, handle, flags) */
long on_mem_map(void *real, long *a)
{
    long result = call(real, a);
    if ((int)result == CUDA_SUCCESS && is_capped())
        put_mapping((uint64_t)a[0], (uint64_t)a[1], (uint64_t)a[3]);
    return result;
}

/* cuMemUnmap(address, size): of one or several adjacent mappings. Only the program itself maps something else there, and
 * not before this returns. */
long on_mem_unmap(void *real, long *a)
{
    long result = call(real, a);
    uint64_t at = (uint64_t)a[0];
    uint64_t left = (uint64_t)a[1];
    struct held what;
    if ((int)result != CUDA_SUCCESS || !is_capped())
        return result;
    for (; left != 0 && held_take(KIND_MAPPING, at, &what); at += what.bytes) {
        leave_block(what.link);
        left -= what.bytes < left ? what.bytes : left;
    }
    return result;
}
