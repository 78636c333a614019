/* Allocations by address: charged before the call, credited when they are freed. */
#include "cap.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
    PITCH = 512, /* what rows are rounded up to, at least */
    NAME_CHARS = 64
};

static const char not_counted[] = "some GPU memory of this program cannot be counted: it is not under the job's cap";

uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

bool is_capped(void)
{
    const struct job_file *said = job_said();
    return said != NULL && (said->wants & WANTS_CAP) != 0;
}

bool is_first_version(void *real, const char *name, struct versions *known)
{
    char second[NAME_CHARS];
    if (snprintf(second, sizeof second, "%s_v2", name) >= NAME_CHARS)
        return false;
    void *newer = driver_once(&known->second, second);
    return newer != NULL && newer != real && driver_once(&known->first, name) == real;
}

enum verdict charge(int gpu, uint64_t bytes)
{
    enum verdict verdict = quota_charge(gpu, bytes);
    if (verdict == REFUSED && pools_trim(gpu))
        verdict = quota_charge(gpu, bytes);
    if (verdict == REFUSED)
        quota_count_refused();
    return verdict;
}

void say_not_counted(void)
{
    static _Atomic bool is_said;
    quota_count_uncounted();
    if (!atomic_exchange(&is_said, true))
        say(not_counted);
}

void forgotten(const struct held *what)
{
    if (what->kind == KIND_ADDRESS && what->pool != NO_POOL)
        pools_freed(what);
    else if (what->kind == KIND_ADDRESS || what->kind == KIND_ARRAY || what->kind == KIND_BLOCK)
        quota_credit(what->gpu, what->bytes);
}

void remember(struct held what)
{
    struct held old;
    if (held_put(what, &old)) {
        quota_count_allocation();
        forgotten(&old); /* it was freed in a way that is not known here */
        return;
    }
    forgotten(&what);
    say_not_counted();
}

long uncounted_call(void *real, long *a)
{
    long result = call(real, a);
    if ((int)result == CUDA_SUCCESS)
        say_not_counted();
    return result;
}

/* On a GPU that is not the job's there is nothing to charge. */
long elsewhere_call(void *real, long *a)
{
    long result = call(real, a);
    if ((int)result == CUDA_SUCCESS) {
        quota_count_uncounted();
        trouble(TROUBLE_OTHER_GPU, "this program uses a GPU that is not the job's: no lock and no cap there");
    }
    return result;
}

long charged_call(void *real, long *a, struct held what, void (*keep)(struct held))
{
    if (what.gpu < 0)
        return elsewhere_call(real, a);
    enum verdict verdict = charge(what.gpu, what.bytes);
    if (verdict == REFUSED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (verdict == NOT_COUNTED)
        return uncounted_call(real, a);
    fault("memory-charged");
    long result = call(real, a);
    if (verdict == CHARGED && (int)result == CUDA_SUCCESS) {
        memcpy(&what.key, (void *)a[0], sizeof what.key);
        keep(what);
    } else if (verdict == CHARGED) {
        quota_credit(what.gpu, what.bytes);
    }
    return result;
}

static long alloc(void *real, long *a, uint64_t bytes)
{
    struct held what = {.kind = KIND_ADDRESS, .bytes = bytes, .pool = NO_POOL};
    what.gpu = job_gpu_current();
    what.link = (uintptr_t)context_of_thread();
    return charged_call(real, a, what, remember);
}

long on_alloc(void *real, long *a)
{
    static struct versions versions;
    if (!is_capped())
        return call(real, a);
    return is_first_version(real, "cuMemAlloc", &versions) ? uncounted_call(real, a) : alloc(real, a, (uint64_t)a[1]);
}

/* Managed memory counts where it is made, wherever it comes to lie. */
long on_alloc_managed(void *real, long *a)
{
    return is_capped() ? alloc(real, a, (uint64_t)a[1]) : call(real, a);
}

static long free_again(uint64_t address)
{
    void *real = driver("cuMemFree_v2");
    long a[ARGUMENTS] = {(long)address};
    struct held what;
    if (real == NULL || (int)call(real, a) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    if (held_take(KIND_ADDRESS, address, &what))
        forgotten(&what);
    quota_count_refused();
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* The driver says only afterwards how long a row is. */
static long correct_pitch(uint64_t address, uint64_t guess, uint64_t bytes)
{
    struct held what;
    if (bytes == guess || !held_get(KIND_ADDRESS, address, &what))
        return CUDA_SUCCESS;
    if (bytes > guess && quota_charge(what.gpu, bytes - guess) == REFUSED)
        return free_again(address);
    if (bytes < guess)
        quota_credit(what.gpu, guess - bytes);
    what.bytes = bytes;
    struct held old;
    held_put(what, &old);
    return CUDA_SUCCESS;
}

long on_alloc_pitch(void *real, long *a)
{
    static struct versions versions;
    if (!is_capped())
        return call(real, a);
    if (is_first_version(real, "cuMemAllocPitch", &versions))
        return uncounted_call(real, a);
    uint64_t width = (uint64_t)a[2];
    uint64_t guess = times(width > UINT64_MAX - PITCH ? width : (width + PITCH - 1) / PITCH * PITCH, (uint64_t)a[3]);
    long result = alloc(real, a, guess);
    if ((int)result != CUDA_SUCCESS)
        return result;
    uint64_t address;
    size_t pitch;
    memcpy(&address, (void *)a[0], sizeof address);
    memcpy(&pitch, (void *)a[1], sizeof pitch);
    return correct_pitch(address, guess, times(pitch, (uint64_t)a[3]));
}

/* Forgotten before the call: as soon as it is free, another thread may get the same address. */
long free_call(void *real, long *a, enum kind kind)
{
    struct held what;
    struct held old;
    bool is_known = held_take(kind, (uint64_t)a[0], &what);
    long result = call(real, a);
    if (is_known && (int)result == CUDA_SUCCESS)
        forgotten(&what);
    else if (is_known && !held_put(what, &old))
        say_not_counted();
    return result;
}

long on_free(void *real, long *a)
{
    static struct versions versions;
    return is_capped() && !is_first_version(real, "cuMemFree", &versions) ? free_call(real, a, KIND_ADDRESS) : call(real, a);
}

/* -- the ends of contexts ------------------------------------------------------------------------------------------- */

void memory_context_gone(uint64_t context)
{
    static const enum kind kinds[] = {KIND_ADDRESS, KIND_ARRAY};
    for (size_t i = 0; context != 0 && i < sizeof kinds / sizeof *kinds; i++) {
        size_t from = 0;
        struct held what;
        while (held_take_linked(kinds[i], context, &from, &what))
            forgotten(&what);
    }
}

bool memory_primary_is_active(int ordinal)
{
    unsigned flags;
    int active = 0;
    long a[ARGUMENTS] = {ordinal, (long)&flags, (long)&active};
    void *real = driver("cuDevicePrimaryCtxGetState");
    return real != NULL && (int)call(real, a) == CUDA_SUCCESS && active != 0;
}

uint64_t memory_primary_context(int ordinal)
{
    void *context = NULL;
    long a[ARGUMENTS] = {(long)&context, ordinal};
    void *retain = driver("cuDevicePrimaryCtxRetain");
    void *release = driver("cuDevicePrimaryCtxRelease_v2");
    /* Retained while nobody has it, it would be made. */
    if (!is_capped() || retain == NULL || release == NULL || !memory_primary_is_active(ordinal) ||
        (int)call(retain, a) != CUDA_SUCCESS)
        return 0;
    call(release, (long[ARGUMENTS]){ordinal});
    return (uintptr_t)context;
}

void memory_primary_context_gone(int ordinal, uint64_t context)
{
    if (context == 0 || memory_primary_is_active(ordinal))
        return;
    memory_context_gone(context);
    pools_gone(job_gpu(ordinal));
}
