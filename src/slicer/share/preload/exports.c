/* The names that programs linked with the driver (-lcuda, -lnvidia-ml) bind to this library, as it is preloaded. */
#include <stdatomic.h>

#include "names.h"
#include "share.h"
#include "wrapper.h"

enum {
    ABSENT_CUDA = 302, /* CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND */
    ABSENT_NVML = 12   /* NVML_ERROR_LIBRARY_NOT_FOUND */
};

struct export {
    const char *name;
    _Atomic(const struct hook *) hook;
    _Atomic(void *) real; /* looked up at the first call */
};

static struct export exports[] = {
#define ROW(symbol) {.name = #symbol},
    EXPORTS(ROW)
#undef ROW
};

static long enter(struct export *export, long *a)
{
    void *real = atomic_load_explicit(&export->real, memory_order_acquire);
    if (!real) {
        real = driver(export->name);
        if (!real)
            return export->name[0] == 'n' ? ABSENT_NVML : ABSENT_CUDA;
        atomic_store_explicit(&export->hook, hook_of(export->name), memory_order_relaxed);
        atomic_store_explicit(&export->real, real, memory_order_release);
    }
    return atomic_load_explicit(&export->hook, memory_order_relaxed)->handle(real, a);
}

enum number {
#define ROW(symbol) NUMBER_##symbol,
    EXPORTS(ROW)
#undef ROW
};

#define ROW(symbol) \
    EXPORTED long symbol(WRAPPER_PARAMETERS); \
    long symbol(WRAPPER_PARAMETERS) \
    { \
        long a[ARGUMENTS] = {WRAPPER_ARGUMENTS}; \
        return enter(&exports[NUMBER_##symbol], a); \
    }
EXPORTS(ROW)
