/* The ways in which programs find the driver's functions. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

struct driver cuda;

struct wanted {
    const char *name, *symbol;
    void **to;
};

#define WANTED(name, symbol, parameters) {#name, #symbol, (void **)(void *)&cuda.name},
static const struct wanted all[] = {DRIVER(WANTED)};
enum { COUNT = sizeof all / sizeof *all, VARIANTS = 7 };

static int missing(const char *what)
{
    fprintf(stderr, "client: not found: %s\n", what);
    return -1;
}

int ask_as_cudart(void)
{
    static const struct {
        int version;
        u64 flags;
    } variants[VARIANTS] = {{2000, 0}, {3020, 0}, {4000, 0}, {7000, 2}, {10000, 0}, {11000, 2}, {12000, 1}};
    static _Atomic(void *) before[COUNT][VARIANTS];
    void *found, *first;
    int status, changed = 0;

    cuda.cuGetProcAddress_v2("", &found, 0, 0, &status);
    for (int i = 0; i < COUNT; i++)
        for (int v = 0; v < VARIANTS; v++) {
            found = first = NULL;
            cuda.cuGetProcAddress_v2(all[i].name, &found, variants[v].version, variants[v].flags, &status);
            if (!atomic_compare_exchange_strong(&before[i][v], &first, found))
                changed += first != found;
        }
    return changed;
}

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
static int by_dlsym(void)
{
    for (int i = 0; i < COUNT; i++)
        if (!(*all[i].to = dlsym(cuda.library, all[i].symbol)))
            return missing(all[i].symbol);
    return 0;
}

/* Not the newest version of all: later ones make contexts with other arguments. */
static int by_proc(u64 flags)
{
    int status, version;

    for (int i = 0; i < COUNT; i++) {
        version = strcmp(all[i].name, "cuCtxCreate") ? 12000 : 7000;
        if (cuda.cuGetProcAddress_v2(all[i].name, all[i].to, version, flags, &status) || !*all[i].to)
            return missing(all[i].name);
    }
    return 0;
}

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
    if (!strcmp(how, "cudart"))
        return ask_as_cudart() ? missing("the same function twice") : by_proc(0);
    return strcmp(how, "proc") && strcmp(how, "ptsz") ? missing(how) : by_proc(strcmp(how, "ptsz") ? 1 : 2);
}
#endif
