/* What runs on a GPU: kernels, copies, memsets. How long a kernel takes is what its first argument says. */
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define FUNCTION_MAGIC UINT64_C(0x66756e6374696f6e)
enum { MODULE_BYTES = 16, SMALL = 64 << 20 };

struct function {
    u64 magic;
    char name[64];
};
struct configuration {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    void *attributes;
    unsigned count;
};
struct cooperative {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    void **arguments;
};
struct copy2d {
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    u64 from_device;
    void *from_array;
    size_t from_pitch, to_x, to_y;
    int to_type;
    void *to_host;
    u64 to_device;
    void *to_array;
    size_t to_pitch, width, height;
};

static u64 argument(void **arguments, void **extra, int index)
{
    if (arguments && arguments[index])
        return *(u64 *)arguments[index];
    for (; extra && *extra; extra += 2)
        if ((uintptr_t)*extra == 1)
            return ((u64 *)extra[1])[index];
    return 0;
}

/* "spin…"(u64 ns) takes that long. "meet…"(u64 ns, u64 meeting, u64 parties) ends that long after as many
 * kernels have begun with the same meeting, in any process. All others take FAKE_CUDA_KERNEL_US. */
static int launch(struct call *c, void *handle, void *stream, int per_thread, void **arguments, void **extra)
{
    struct function *function = handle;
    struct work w = {.kind = KERNEL};
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    if (!function || function->magic != FUNCTION_MAGIC)
        return INVALID_HANDLE;
    if (code != SUCCESS)
        return code;
    if (!strncmp(function->name, "spin", 4) || !strncmp(function->name, "meet", 4))
        w.duration = (i64)argument(arguments, extra, 0);
    else
        w.duration = (i64)setting("FAKE_CUDA_KERNEL_US", 1000) * 1000;
    if (!strncmp(function->name, "meet", 4)) {
        w.kind = MEET;
        w.meeting = argument(arguments, extra, 1);
        w.parties = argument(arguments, extra, 2);
    }
    return submit(c, s, &w);
}

static int launch_all(struct call *c, struct cooperative *all, unsigned count, int per_thread)
{
    int code = SUCCESS;

    for (unsigned i = 0; i < count && code == SUCCESS; i++)
        code = launch(c, all[i].function, all[i].stream, per_thread, all[i].arguments, NULL);
    return code;
}

static int load(void **to, const void *image)
{
    if (!image || !current_context())
        return image ? INVALID_CONTEXT : INVALID_VALUE;
    *to = calloc(1, MODULE_BYTES);
    return SUCCESS;
}

static int unload(void *module)
{
    free(module);
    return SUCCESS;
}

/* Any name will do. Functions stay: a program may keep one for longer than its module. */
static int find_function(void **to, void *module, const char *name)
{
    struct function *function;

    if (!module || !name || strlen(name) >= sizeof function->name)
        return module ? NOT_FOUND : INVALID_HANDLE;
    function = calloc(1, sizeof *function);
    function->magic = FUNCTION_MAGIC;
    strcpy(function->name, name);
    *to = function;
    return SUCCESS;
}

/* Bytes at 10 GB/s. */
static int put_copy(struct call *c, void *stream, int per_thread, u64 bytes, bool is_async)
{
    struct work w = {.kind = KERNEL, .duration = 1000 + (i64)(bytes / 10)};
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    c->bytes = bytes;
    if (code == SUCCESS && !is_async) {
        pthread_mutex_lock(&lock);
        code = sync_of_capture(s);
        pthread_mutex_unlock(&lock);
    }
    if (code == SUCCESS)
        code = submit(c, s, &w);
    if (code == SUCCESS && !is_async)
        wait_for_stream(s);
    return code;
}

/* The data moves at once, as far as it is asked for outside of a capture. */
static int copy(struct call *c, void *stream, int per_thread, void *to, bool to_device, const void *from,
                bool from_device, u64 bytes, bool is_async)
{
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    if (code == SUCCESS &&
        ((to_device && !is_device_memory(to, bytes)) || (from_device && !is_device_memory(from, bytes))))
        return INVALID_VALUE;
    if (code == SUCCESS && !s->capture && to && from && bytes <= SMALL)
        memmove(to, from, bytes);
    return code == SUCCESS ? put_copy(c, stream, per_thread, bytes, is_async) : code;
}

static int set(struct call *c, void *stream, int per_thread, u64 to, size_t pitch, unsigned value, int size,
               size_t width, size_t height, bool is_async)
{
    unsigned char *row = (unsigned char *)(uintptr_t)to;
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    if (code == SUCCESS && !is_device_memory(row, width * (size_t)size))
        return INVALID_VALUE;
    if (code == SUCCESS && !s->capture && width * height * (size_t)size <= SMALL)
        for (size_t y = 0; y < height; y++, row += pitch)
            for (size_t x = 0; x < width; x++)
                memcpy(row + x * (size_t)size, &value, (size_t)size);
    return code == SUCCESS ? put_copy(c, stream, per_thread, width * height * (size_t)size / 100, is_async)
                           : code;
}

static u64 area(const struct copy2d *what)
{
    return what->width * what->height;
}

#define P(address) ((void *)(uintptr_t)(address))
#define GRID \
    unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_bytes, \
        void *stream
#define UNUSED_GRID ((void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared_bytes)

BOTH(cuLaunchKernel, _ptsz, (void *function, GRID, void **arguments, void **extra), UNUSED_GRID,
     launch(&c, function, stream, PER_THREAD, arguments, extra))
BOTH(cuLaunchKernelEx, _ptsz,
     (const struct configuration *how, void *function, void **arguments, void **extra),
     how ? launch(&c, function, how->stream, PER_THREAD, arguments, extra) : INVALID_VALUE)
BOTH(cuLaunchCooperativeKernel, _ptsz, (void *function, GRID, void **arguments), UNUSED_GRID,
     launch(&c, function, stream, PER_THREAD, arguments, NULL))
API(cuLaunchCooperativeKernelMultiDevice, (struct cooperative *all, unsigned count, unsigned flags),
    (void)flags, launch_all(&c, all, count, 0))
API(cuLaunch, (void *function), launch(&c, function, NULL, 0, NULL, NULL))
API(cuLaunchGrid, (void *function, int width, int height), (void)width, (void)height,
    launch(&c, function, NULL, 0, NULL, NULL))
API(cuLaunchGridAsync, (void *function, int width, int height, void *stream), (void)width, (void)height,
    launch(&c, function, stream, 0, NULL, NULL))
API(cuModuleLoadData, (void **to, const void *image), load(to, image))
API(cuModuleLoadDataEx, (void **to, const void *image, unsigned count, void *options, void *values),
    (void)count, (void)options, (void)values, load(to, image))
API(cuModuleLoadFatBinary, (void **to, const void *image), load(to, image))
API(cuModuleUnload, (void *module), unload(module))
API(cuModuleGetFunction, (void **to, void *module, const char *name), find_function(to, module, name))
API(cuLibraryLoadData,
    (void **to, const void *image, void *o, void *p, unsigned q, void *r, void *t, unsigned u), (void)o,
    (void)p, (void)q, (void)r, (void)t, (void)u, load(to, image))
API(cuLibraryUnload, (void *library), unload(library))
API(cuLibraryGetKernel, (void **to, void *library, const char *name), find_function(to, library, name))
API(cuKernelGetFunction, (void **to, void *kernel), *to = kernel, SUCCESS)
API(cuFuncSetAttribute, (void *function, int which, int value), (void)function, (void)which, (void)value,
    SUCCESS)

BOTH(cuMemcpy, _ptds, (u64 to, u64 from, size_t n),
     copy(&c, NULL, PER_THREAD, P(to), false, P(from), false, n, false))
BOTH(cuMemcpyAsync, _ptsz, (u64 to, u64 from, size_t n, void *s),
     copy(&c, s, PER_THREAD, P(to), false, P(from), false, n, true))
BOTH(cuMemcpyPeer, _ptds, (u64 to, void *to_context, u64 from, void *from_context, size_t n),
     (void)to_context, (void)from_context, copy(&c, NULL, PER_THREAD, P(to), true, P(from), true, n, false))
BOTH(cuMemcpyPeerAsync, _ptsz, (u64 to, void *to_context, u64 from, void *from_context, size_t n, void *s),
     (void)to_context, (void)from_context, copy(&c, s, PER_THREAD, P(to), true, P(from), true, n, true))
API(cuMemcpyHtoD, (unsigned to, const void *from, unsigned n), (void)to, (void)from, (void)n, NOT_SUPPORTED)
BOTH(cuMemcpyHtoD_v2, _ptds, (u64 to, const void *from, size_t n),
     copy(&c, NULL, PER_THREAD, P(to), true, from, false, n, false))
BOTH(cuMemcpyDtoH_v2, _ptds, (void *to, u64 from, size_t n),
     copy(&c, NULL, PER_THREAD, to, false, P(from), true, n, false))
BOTH(cuMemcpyDtoD_v2, _ptds, (u64 to, u64 from, size_t n),
     copy(&c, NULL, PER_THREAD, P(to), true, P(from), true, n, false))
BOTH(cuMemcpyHtoDAsync_v2, _ptsz, (u64 to, const void *from, size_t n, void *s),
     copy(&c, s, PER_THREAD, P(to), true, from, false, n, true))
BOTH(cuMemcpyDtoHAsync_v2, _ptsz, (void *to, u64 from, size_t n, void *s),
     copy(&c, s, PER_THREAD, to, false, P(from), true, n, true))
BOTH(cuMemcpyDtoDAsync_v2, _ptsz, (u64 to, u64 from, size_t n, void *s),
     copy(&c, s, PER_THREAD, P(to), true, P(from), true, n, true))
/* Of arrays and boxes only the time is simulated. */
BOTH(cuMemcpyDtoA_v2, _ptds, (void *to, size_t at, u64 from, size_t n), (void)to, (void)at, (void)from,
     put_copy(&c, NULL, PER_THREAD, n, false))
BOTH(cuMemcpyAtoD_v2, _ptds, (u64 to, void *from, size_t at, size_t n), (void)to, (void)at, (void)from,
     put_copy(&c, NULL, PER_THREAD, n, false))
BOTH(cuMemcpyHtoA_v2, _ptds, (void *to, size_t at, const void *from, size_t n), (void)to, (void)at,
     (void)from, put_copy(&c, NULL, PER_THREAD, n, false))
BOTH(cuMemcpyAtoH_v2, _ptds, (void *to, void *from, size_t at, size_t n), (void)to, (void)at, (void)from,
     put_copy(&c, NULL, PER_THREAD, n, false))
BOTH(cuMemcpyHtoAAsync_v2, _ptsz, (void *to, size_t at, const void *from, size_t n, void *s), (void)to,
     (void)at, (void)from, put_copy(&c, s, PER_THREAD, n, true))
BOTH(cuMemcpyAtoHAsync_v2, _ptsz, (void *to, void *from, size_t at, size_t n, void *s), (void)to, (void)at,
     (void)from, put_copy(&c, s, PER_THREAD, n, true))
BOTH(cuMemcpy2D_v2, _ptds, (const struct copy2d *what), put_copy(&c, NULL, PER_THREAD, area(what), false))
BOTH(cuMemcpy2DUnaligned_v2, _ptds, (const struct copy2d *what),
     put_copy(&c, NULL, PER_THREAD, area(what), false))
BOTH(cuMemcpy2DAsync_v2, _ptsz, (const struct copy2d *what, void *s),
     put_copy(&c, s, PER_THREAD, area(what), true))
BOTH(cuMemcpy3D_v2, _ptds, (const void *what), (void)what, put_copy(&c, NULL, PER_THREAD, MIB, false))
BOTH(cuMemcpy3DAsync_v2, _ptsz, (const void *what, void *s), (void)what,
     put_copy(&c, s, PER_THREAD, MIB, true))

BOTH(cuMemsetD8_v2, _ptds, (u64 to, unsigned char value, size_t n),
     set(&c, NULL, PER_THREAD, to, 0, value, 1, n, 1, false))
BOTH(cuMemsetD16_v2, _ptds, (u64 to, unsigned short value, size_t n),
     set(&c, NULL, PER_THREAD, to, 0, value, 2, n, 1, false))
BOTH(cuMemsetD32_v2, _ptds, (u64 to, unsigned value, size_t n),
     set(&c, NULL, PER_THREAD, to, 0, value, 4, n, 1, false))
BOTH(cuMemsetD8Async, _ptsz, (u64 to, unsigned char value, size_t n, void *s),
     set(&c, s, PER_THREAD, to, 0, value, 1, n, 1, true))
BOTH(cuMemsetD16Async, _ptsz, (u64 to, unsigned short value, size_t n, void *s),
     set(&c, s, PER_THREAD, to, 0, value, 2, n, 1, true))
BOTH(cuMemsetD32Async, _ptsz, (u64 to, unsigned value, size_t n, void *s),
     set(&c, s, PER_THREAD, to, 0, value, 4, n, 1, true))
BOTH(cuMemsetD2D8_v2, _ptds, (u64 to, size_t pitch, unsigned char value, size_t width, size_t height),
     set(&c, NULL, PER_THREAD, to, pitch, value, 1, width, height, false))
BOTH(cuMemsetD2D32_v2, _ptds, (u64 to, size_t pitch, unsigned value, size_t width, size_t height),
     set(&c, NULL, PER_THREAD, to, pitch, value, 4, width, height, false))
BOTH(cuMemsetD2D8Async, _ptsz,
     (u64 to, size_t pitch, unsigned char value, size_t width, size_t height, void *s),
     set(&c, s, PER_THREAD, to, pitch, value, 1, width, height, true))
BOTH(cuMemsetD2D32Async, _ptsz, (u64 to, size_t pitch, unsigned value, size_t width, size_t height, void *s),
     set(&c, s, PER_THREAD, to, pitch, value, 4, width, height, true))
BOTH(cuMemPrefetchAsync, _ptsz, (u64 to, size_t n, int where, void *s), (void)to, (void)where,
     put_copy(&c, s, PER_THREAD, n, true))
BOTH(cuMemPrefetchAsync_v2, _ptsz, (u64 to, size_t n, u64 where, unsigned flags, void *s), (void)to,
     (void)where, (void)flags, put_copy(&c, s, PER_THREAD, n, true))
