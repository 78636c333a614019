/* What the driver takes by address: CUmemAllocationProp, CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR. */
#ifndef FAKE_CUDA_STRUCTS_H
#define FAKE_CUDA_STRUCTS_H

#include <stddef.h>

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
