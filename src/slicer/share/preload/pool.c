/* The pool of wrappers: functions in plain C, one for each wrapped pointer of the driver's.
 *
 * A wrapper takes as many integer arguments as any hooked function has, and passes all of them on, in the registers and
 * stack slots where the caller put its own. The real function never reads those that the caller did not pass. So neither
 * prototypes nor a version of the CUDA headers are needed. */
#include <stdatomic.h>

#include "names.h"
#include "share.h"

enum { SLOTS = 1024 }; /* about 100 hooked functions, each in up to 6 variants */

struct slot {
    _Atomic(const struct hook *) hook;
    _Atomic(void *) real;
};

static struct slot slots[SLOTS];
__thread const struct hook *share_hook __attribute__((tls_model("initial-exec")));

static long enter(unsigned number, long *a)
{
    const struct slot *slot = &slots[number];
    const struct hook *hook = atomic_load_explicit(&slot->hook, memory_order_acquire);
    return handled(hook, atomic_load_explicit(&slot->real, memory_order_relaxed), a);
}

#define SIXTEEN(X, p) \
    X(p##0) X(p##1) X(p##2) X(p##3) X(p##4) X(p##5) X(p##6) X(p##7) \
    X(p##8) X(p##9) X(p##a) X(p##b) X(p##c) X(p##d) X(p##e) X(p##f)
#define ROWS(X, p) \
    SIXTEEN(X, p##0) SIXTEEN(X, p##1) SIXTEEN(X, p##2) SIXTEEN(X, p##3) \
    SIXTEEN(X, p##4) SIXTEEN(X, p##5) SIXTEEN(X, p##6) SIXTEEN(X, p##7) \
    SIXTEEN(X, p##8) SIXTEEN(X, p##9) SIXTEEN(X, p##a) SIXTEEN(X, p##b) \
    SIXTEEN(X, p##c) SIXTEEN(X, p##d) SIXTEEN(X, p##e) SIXTEEN(X, p##f)
#define EACH_SLOT(X) ROWS(X, 0x0) ROWS(X, 0x1) ROWS(X, 0x2) ROWS(X, 0x3)

#define WRAPPER(n) \
    static long wrapper_##n(WRAPPER_PARAMETERS) \
    { \
        long a[ARGUMENTS] = {WRAPPER_ARGUMENTS}; \
        return enter(n, a); \
    }
EACH_SLOT(WRAPPER)

#define NAME(n) wrapper_##n,
static wrapper *const wrappers[SLOTS] = {EACH_SLOT(NAME)};

static void *address(unsigned number)
{
    union { wrapper *function; void *pointer; } u = {.function = wrappers[number]};
    return u.pointer;
}

/* Without a lock, so that the pool works in the child of a fork at any moment. A slot belongs to the thread that first
 * wrote its `real`, and is complete with its `hook`. Two threads that ask for the same pair at once may get two. */
void *wrapper_of(const struct hook *hook, void *real)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        void *taken = NULL;
        if (address(i) == real)
            return real; /* already a wrapper */
        if (atomic_compare_exchange_strong(&slots[i].real, &taken, real)) {
            atomic_store_explicit(&slots[i].hook, hook, memory_order_release);
            return address(i);
        }
        if (taken == real && atomic_load_explicit(&slots[i].hook, memory_order_acquire) == hook)
            return address(i);
    }
    trouble(TROUBLE_POOL_FULL, "more functions of the driver were looked up than can be wrapped: "
                               "some work and some memory of this program is not counted");
    return real;
}

long call(void *real, long *a)
{
    union { void *pointer; wrapper *function; } u = {.pointer = real};
    return u.function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
}

/* The names that programs linked with the driver (-lcuda, -lnvidia-ml) bind to this library, as it is preloaded. */

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
#define ONE_ROW(symbol) {.name = #symbol},
#define ROW(base, handler, variants) variants(ONE_ROW, base)
    HOOKS(ROW)
#undef ONE_ROW
};

static long enter_export(struct export *export, long *a)
{
    void *real = atomic_load_explicit(&export->real, memory_order_acquire);
    if (!real) {
        real = driver(export->name);
        if (!real)
            return export->name[0] == 'n' ? ABSENT_NVML : ABSENT_CUDA;
        atomic_store_explicit(&export->hook, hook_of(export->name), memory_order_relaxed);
        atomic_store_explicit(&export->real, real, memory_order_release);
    }
    return handled(atomic_load_explicit(&export->hook, memory_order_relaxed), real, a);
}

enum number {
#define ONE_ROW(symbol) NUMBER_##symbol,
    HOOKS(ROW)
#undef ONE_ROW
};

#define ONE_ROW(symbol) \
    EXPORTED long symbol(WRAPPER_PARAMETERS); \
    long symbol(WRAPPER_PARAMETERS) \
    { \
        long a[ARGUMENTS] = {WRAPPER_ARGUMENTS}; \
        return enter_export(&exports[NUMBER_##symbol], a); \
    }
HOOKS(ROW)
