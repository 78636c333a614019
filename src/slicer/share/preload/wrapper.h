/* The shape of a wrapper: ARGUMENTS integers. For pool.c and exports.c. */
#ifndef SLICER_SHARE_WRAPPER_H
#define SLICER_SHARE_WRAPPER_H

#define WRAPPER_PARAMETERS \
    long a0, long a1, long a2, long a3, long a4, long a5, long a6, long a7, long a8, long a9, long a10, long a11
#define WRAPPER_ARGUMENTS a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11

typedef long wrapper(WRAPPER_PARAMETERS);

#endif
