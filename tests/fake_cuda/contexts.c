/* Contexts, and each thread's stack of them. */
#include <stdlib.h>

#include "fake.h"

#define MAGIC UINT64_C(0x636f6e74657874)
enum { LIMIT_REACHED = 304, PRIMARY_ACTIVE = 708 };

static struct context primaries[MAX_GPUS];
static __thread struct context *stack[NEST];
static __thread int depth;

struct context *checked_context(void *handle)
{
    struct context *context = handle;
    return context && context->magic == MAGIC && context->alive ? context : NULL;
}

struct context *current_context(void)
{
    return depth ? checked_context(stack[depth - 1]) : NULL;
}

static u64 overhead(void)
{
    return setting("FAKE_CUDA_CONTEXT_MIB", 300) * MIB;
}

static int open_context(struct context *context, int ordinal, bool primary)
{
    if (take_memory(ordinal, overhead()) != SUCCESS)
        return OUT_OF_MEMORY;
    context->magic = MAGIC;
    context->ordinal = ordinal;
    context->alive = true;
    context->primary = primary;
    context->streams = NULL;
    new_stream(context, true, true, 0);
    return SUCCESS;
}

static void close_context(struct context *context)
{
    context->alive = false;
    forget_streams(context);
    forget_memory(context);
    give_memory(context->ordinal, overhead());
}

static int push(void *handle)
{
    if (!checked_context(handle))
        return INVALID_CONTEXT;
    if (depth == NEST)
        return LIMIT_REACHED;
    stack[depth++] = handle;
    return SUCCESS;
}

static int pop(void **to)
{
    if (!depth || !stack[depth - 1])
        return INVALID_CONTEXT;
    depth--;
    if (to)
        *to = stack[depth];
    return SUCCESS;
}

static int set(void *handle)
{
    if (handle && !checked_context(handle))
        return INVALID_CONTEXT;
    depth -= depth > 0;
    return handle ? push(handle) : SUCCESS;
}

static int create(void **to, unsigned flags, int ordinal)
{
    struct context *context;
    int code;

    if (!to)
        return INVALID_VALUE;
    if (ordinal < 0 || ordinal >= gpu_count)
        return INVALID_DEVICE;
    context = calloc(1, sizeof *context);
    pthread_mutex_lock(&lock);
    code = open_context(context, ordinal, false);
    pthread_mutex_unlock(&lock);
    context->flags = flags;
    if (code != SUCCESS)
        return code;
    *to = context;
    return push(context);
}

static int destroy(void *handle)
{
    struct context *context = checked_context(handle);

    if (!context || context->primary)
        return INVALID_CONTEXT;
    wait_for_context(context);
    pthread_mutex_lock(&lock);
    close_context(context);
    pthread_mutex_unlock(&lock);
    if (depth && stack[depth - 1] == context)
        depth--;
    return SUCCESS;
}

static int retain(void **to, int ordinal)
{
    int code = SUCCESS;

    if (ordinal < 0 || ordinal >= gpu_count)
        return INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    if (!primaries[ordinal].alive)
        code = open_context(&primaries[ordinal], ordinal, true);
    if (code == SUCCESS) {
        primaries[ordinal].retained++;
        *to = &primaries[ordinal];
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int release(int ordinal, bool all)
{
    struct context *context;
    int code = SUCCESS;

    if (ordinal < 0 || ordinal >= gpu_count)
        return INVALID_DEVICE;
    context = &primaries[ordinal];
    if (context->alive && (all || context->retained == 1))
        wait_for_context(context);
    pthread_mutex_lock(&lock);
    if (!context->alive) {
        code = all ? SUCCESS : INVALID_CONTEXT;
    } else {
        context->retained -= all ? context->retained : 1;
        if (!context->retained)
            close_context(context);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

static int synchronize(void *handle)
{
    struct context *context = checked_context(handle);
    int code;

    if (!context)
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    code = sync_of_captures(context);
    pthread_mutex_unlock(&lock);
    if (code == SUCCESS) {
        wait_for_context(context);
        observe_frees();
    }
    return code;
}

static int give_device(int *to, void *handle)
{
    struct context *context = checked_context(handle);

    if (!context)
        return INVALID_CONTEXT;
    *to = context->ordinal;
    return SUCCESS;
}

static int give_current(void **to)
{
    *to = depth ? stack[depth - 1] : NULL;
    return SUCCESS;
}

static int give_state(int ordinal, unsigned *flags, int *active)
{
    if (ordinal < 0 || ordinal >= gpu_count)
        return INVALID_DEVICE;
    *flags = primaries[ordinal].flags;
    *active = primaries[ordinal].alive;
    return SUCCESS;
}

static int give_flags(unsigned *to)
{
    struct context *context = current_context();

    if (context)
        *to = context->flags;
    return context ? SUCCESS : INVALID_CONTEXT;
}

static int set_flags(int ordinal, unsigned flags)
{
    if (ordinal < 0 || ordinal >= gpu_count)
        return INVALID_DEVICE;
    primaries[ordinal].flags = flags;
    return SUCCESS;
}

API(cuCtxCreate, (void **to, unsigned flags, int ordinal), create(to, flags, ordinal))
API(cuCtxCreate_v2, (void **to, unsigned flags, int ordinal), create(to, flags, ordinal))
API(cuCtxCreate_v3, (void **to, void *affinity, int count, unsigned flags, int ordinal), (void)affinity,
    (void)count, create(to, flags, ordinal))
API(cuCtxCreate_v4, (void **to, void *parameters, unsigned flags, int ordinal), (void)parameters,
    create(to, flags, ordinal))
API(cuCtxDestroy, (void *context), destroy(context))
API(cuCtxDestroy_v2, (void *context), destroy(context))
API(cuCtxPushCurrent, (void *context), push(context))
API(cuCtxPushCurrent_v2, (void *context), push(context))
API(cuCtxPopCurrent, (void **to), pop(to))
API(cuCtxPopCurrent_v2, (void **to), pop(to))
API(cuCtxSetCurrent, (void *context), set(context))
API(cuCtxGetCurrent, (void **to), give_current(to))
API(cuCtxGetDevice, (int *to), give_device(to, current_context()))
API(cuCtxGetDevice_v2, (int *to, void *context), give_device(to, context))
API(cuCtxSynchronize, (void), synchronize(current_context()))
API(cuCtxSynchronize_v2, (void *context), synchronize(context))
API(cuCtxGetFlags, (unsigned *to), give_flags(to))
API(cuCtxGetApiVersion, (void *context, unsigned *to), (void)context, *to = 12090, SUCCESS)
API(cuCtxGetStreamPriorityRange, (int *least, int *greatest), *least = 0, *greatest = -5, SUCCESS)
API(cuDevicePrimaryCtxRetain, (void **to, int ordinal), retain(to, ordinal))
API(cuDevicePrimaryCtxRelease, (int ordinal), release(ordinal, false))
API(cuDevicePrimaryCtxRelease_v2, (int ordinal), release(ordinal, false))
API(cuDevicePrimaryCtxReset, (int ordinal), release(ordinal, true))
API(cuDevicePrimaryCtxReset_v2, (int ordinal), release(ordinal, true))
API(cuDevicePrimaryCtxGetState, (int ordinal, unsigned *flags, int *active),
    give_state(ordinal, flags, active))
API(cuDevicePrimaryCtxSetFlags, (int ordinal, unsigned flags), set_flags(ordinal, flags))
API(cuDevicePrimaryCtxSetFlags_v2, (int ordinal, unsigned flags), set_flags(ordinal, flags))
