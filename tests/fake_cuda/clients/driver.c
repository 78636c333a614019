/* The ways in which programs find the driver's functions. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

struct driver cuda;

static int missing(const char *what)
{
    fprintf(stderr, "client: not found: %s\n", what);
    return -1;
}

#ifndef LINKED
struct wanted { const char *name, *symbol; void **to; };

#define WANTED(name, symbol, parameters) {#name, #symbol, (void **)(void *)&cuda.name},
static const struct wanted all[] = {DRIVER(WANTED)};
enum { COUNT = sizeof all / sizeof *all };

static int by_dlsym(void)
{
    for (int i = 0; i < COUNT; i++)
        if (!(*all[i].to = dlsym(cuda.library, all[i].symbol)))
            return missing(all[i].symbol);
    return 0;
}

static int by_proc(u64 flags)
{
    int status;

    /* later ones make contexts with other arguments */
    for (int i = 0; i < COUNT; i++)
        if (cuda.cuGetProcAddress_v2(all[i].name, all[i].to, strcmp(all[i].name, "cuCtxCreate") ? 12000 : 7000, flags, &status) ||
            !*all[i].to)
            return missing(all[i].name);
    return 0;
}

/* A static cudart first asks for nothing, then for each name in several versions. */
static int by_cudart(void)
{
    static const struct { int version; u64 flags; } variants[] = {{2000, 0}, {3020, 0}, {4000, 0}, {7000, 2}, {10000, 0},
                                                                  {11000, 2}, {12000, 1}};
    void *found;
    int status, asked = 1;

    cuda.cuGetProcAddress_v2("", &found, 0, 0, &status);
    for (int i = 0; i < COUNT; i++)
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++, asked++)
            cuda.cuGetProcAddress_v2(all[i].name, &found, variants[v].version, variants[v].flags, &status);
    return by_proc(0);
}

#endif

#ifdef LINKED
#define PROTOTYPE(name, symbol, parameters) extern int symbol parameters;
DRIVER(PROTOTYPE)
extern int cuGetProcAddress_v2(const char *, void **, int, u64, int *);
#define ASSIGN(name, symbol, parameters) cuda.name = symbol;

int find_driver(const char *how)
{
    DRIVER(ASSIGN)
    cuda.cuGetProcAddress_v2 = cuGetProcAddress_v2;
    return strcmp(how, "linked") ? missing(how) : 0;
}
#else
int find_driver(const char *how)
{
    cuda.library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda.library)
        return missing(dlerror());
    *(void **)&cuda.cuGetProcAddress_v2 = dlsym(cuda.library, "cuGetProcAddress_v2");
    if (!cuda.cuGetProcAddress_v2)
        return missing("cuGetProcAddress_v2");
    if (!strcmp(how, "dlsym"))
        return by_dlsym();
    if (!strcmp(how, "proc") || !strcmp(how, "ptsz"))
        return by_proc(strcmp(how, "ptsz") ? 1 : 2);
    return strcmp(how, "cudart") ? missing(how) : by_cudart();
}
#endif
