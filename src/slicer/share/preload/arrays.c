/* Arrays and mipmapped arrays: how much memory they take follows from their format and size. */
#include "cap.h"

#include <string.h>

/* CUarray_format. Plain ones are sizes of a channel; the others say all by themselves. */
enum { SPARSE = 0x40, DEFERRED = 0x80, LAYERED = 0x01, CUBEMAP = 0x04 }; /* of the flags */

struct shape {
    uint64_t width, height, depth; /* 0: it has no such dimension */
    int format;
    unsigned channels;
    unsigned flags;
};

struct format {
    int first, last;       /* of the numbers */
    unsigned bits;         /* of a texel, or of a channel */
    bool is_each_channel;
    bool is_in_blocks;     /* of 4 × 4 texels */
};

static const struct format formats[] = {
    {0x01, 0x01, 8, true, false},   {0x02, 0x02, 16, true, false},  {0x03, 0x03, 32, true, false},
    {0x08, 0x08, 8, true, false},   {0x09, 0x09, 16, true, false},  {0x0a, 0x0a, 32, true, false},
    {0x10, 0x10, 16, true, false},  {0x20, 0x20, 32, true, false},
    {0x50, 0x50, 32, false, false}, /* 10:10:10:2 */
    {0x91, 0x92, 4, false, true},   {0x93, 0x96, 8, false, true},   /* BC1; BC2, BC3 */
    {0x97, 0x98, 4, false, true},   {0x99, 0x9e, 8, false, true},   /* BC4; BC5 … BC7 */
    {0xb0, 0xb0, 12, false, false}, /* NV12 */
    {0xc0, 0xc0, 8, false, false},  {0xc1, 0xc1, 16, false, false}, {0xc2, 0xc2, 32, false, false},
    {0xc3, 0xc3, 16, false, false}, {0xc4, 0xc4, 32, false, false}, {0xc5, 0xc5, 64, false, false},
    {0xc6, 0xc6, 8, false, false},  {0xc7, 0xc7, 16, false, false}, {0xc8, 0xc8, 32, false, false},
    {0xc9, 0xc9, 16, false, false}, {0xca, 0xca, 32, false, false}, {0xcb, 0xcb, 64, false, false},
};

static const struct format *format_of(int number)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (number >= formats[i].first && number <= formats[i].last)
            return &formats[i];
    return NULL;
}

static uint64_t level_bytes(const struct shape *shape, const struct format *format)
{
    uint64_t width = shape->width;
    uint64_t height = shape->height == 0 ? 1 : shape->height;
    if (format->is_in_blocks) {
        width = width > UINT64_MAX - 3 ? width : (width + 3) & ~UINT64_C(3);
        height = height > UINT64_MAX - 3 ? height : (height + 3) & ~UINT64_C(3);
    }
    uint64_t texels = times(times(width, height), shape->depth == 0 ? 1 : shape->depth);
    uint64_t bits = times(texels, (uint64_t)format->bits * (format->is_each_channel ? shape->channels : 1));
    return bits == UINT64_MAX ? bits : bits / 8 + (bits % 8 != 0);
}

static uint64_t half(uint64_t size)
{
    return size <= 1 ? size : size / 2;
}

static uint64_t bytes_of(struct shape shape, const struct format *format, unsigned levels)
{
    uint64_t total = 0;
    for (unsigned level = 0; level < levels; level++) {
        uint64_t more = level_bytes(&shape, format);
        total = total > UINT64_MAX - more ? UINT64_MAX : total + more;
        if (shape.width <= 1 && shape.height <= 1 && shape.depth <= 1)
            break; /* there are no smaller ones */
        shape.width = half(shape.width);
        shape.height = half(shape.height);
        if ((shape.flags & (LAYERED | CUBEMAP)) == 0)
            shape.depth = half(shape.depth);
    }
    return total;
}

static long create(void *real, long *a, struct shape shape, unsigned levels)
{
    const struct format *format = format_of(shape.format);
    if ((shape.flags & (SPARSE | DEFERRED)) != 0)
        return call(real, a); /* no memory of its own: that is mapped later, by handle */
    if (format == NULL)
        return uncounted_call(real, a);
    struct held what = {.kind = KIND_ARRAY, .bytes = bytes_of(shape, format, levels), .pool = NO_POOL};
    what.gpu = job_gpu_current();
    what.link = (uintptr_t)context_of_thread();
    return charged_call(real, a, what, remember);
}

/* cuArrayCreate_v2(*array, const CUDA_ARRAY_DESCRIPTOR *) */
long on_array_create(void *real, long *a)
{
    static struct versions versions;
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } given;
    if (!is_capped() || a[1] == 0)
        return call(real, a);
    if (is_first_version(real, "cuArrayCreate", &versions))
        return uncounted_call(real, a);
    memcpy(&given, (void *)a[1], sizeof given);
    return create(real, a, (struct shape){given.width, given.height, 0, given.format, given.channels, 0}, 1);
}

/* CUDA_ARRAY3D_DESCRIPTOR_v2 */
static struct shape shape_at(long address)
{
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } given;
    memcpy(&given, (void *)address, sizeof given);
    return (struct shape){given.width, given.height, given.depth, given.format, given.channels, given.flags};
}

/* cuArray3DCreate_v2(*array, const CUDA_ARRAY3D_DESCRIPTOR *) */
long on_array3d_create(void *real, long *a)
{
    static struct versions versions;
    if (!is_capped() || a[1] == 0)
        return call(real, a);
    if (is_first_version(real, "cuArray3DCreate", &versions))
        return uncounted_call(real, a);
    return create(real, a, shape_at(a[1]), 1);
}

/* cuMipmappedArrayCreate(*array, const CUDA_ARRAY3D_DESCRIPTOR *, levels) */
long on_mipmapped_create(void *real, long *a)
{
    if (!is_capped() || a[1] == 0)
        return call(real, a);
    return create(real, a, shape_at(a[1]), (unsigned)a[2]);
}

long on_array_destroy(void *real, long *a)
{
    return is_capped() ? free_call(real, a, KIND_ARRAY) : call(real, a);
}

long on_mipmapped_destroy(void *real, long *a)
{
    return is_capped() ? free_call(real, a, KIND_ARRAY) : call(real, a);
}
