/* What the driver takes by address: CUmemAllocationProp, CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR. */
#ifndef FAKE_CUDA_STRUCTS_H
#define FAKE_CUDA_STRUCTS_H

#include <stdbool.h>
#include <stddef.h>

/* CUmemLocationType: the host, a NUMA node, the current one. All others are on a GPU. */
static inline bool is_host_location(int type)
{
    return type >= 2 && type <= 4;
}

struct properties {
    int type, handle_types, location, id;
    void *win32;
    unsigned char flags[8];
};
struct array2d {
    size_t width, height;
    int format;
    unsigned channels;
};
struct array3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

#endif
