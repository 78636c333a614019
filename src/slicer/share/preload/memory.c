/* Allocations by address: charged before the call, credited when they are freed. */
#include "cap.h"

#include <string.h>

enum { PITCH = 512 }; /* the unit to which rows are rounded up */

static const char not_counted[] = "some GPU memory of this program cannot be counted: it is not under the job's cap";

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

bool is_capped(void)
{
    const struct job_file *said = job_said();
    return said != NULL && (said->wants & WANTS_CAP) != 0;
}

enum verdict charge(int gpu, uint64_t bytes)
{
    enum verdict verdict = quota_charge(gpu, bytes);
    if (verdict == REFUSED && pools_trim(gpu))
        verdict = quota_charge(gpu, bytes);
    if (verdict == REFUSED)
        quota_count(REFUSALS);
    return verdict;
}

void say_not_counted(void)
{
    static _Atomic bool is_said;
    quota_count(UNCOUNTED);
    if (!atomic_exchange(&is_said, true))
        say(not_counted);
}

void forgotten(const struct held *what)
{
    if (what->kind == KIND_ADDRESS || what->kind == KIND_BLOCK)
        quota_credit(what->gpu, what->bytes);
}

void remember(struct held what)
{
    struct held old;
    if (held_put(what, &old)) {
        quota_count(ALLOCATIONS);
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

/* On a GPU that is not the job's, nothing is charged. */
long elsewhere_call(void *real, long *a)
{
    long result = call(real, a);
    if ((int)result == CUDA_SUCCESS) {
        quota_count(UNCOUNTED);
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
    struct held what = {.kind = KIND_ADDRESS, .bytes = bytes};
    what.gpu = job_gpu_current();
    what.link = (uintptr_t)context_of_thread();
    return charged_call(real, a, what, remember);
}

long on_alloc(void *real, long *a)
{
    return is_capped() ? alloc(real, a, (uint64_t)a[1]) : call(real, a);
}

/* cuMemAllocPitch(*address, *pitch, width, height, element) */
long on_alloc_pitch(void *real, long *a)
{
    uint64_t width = (uint64_t)a[2];
    uint64_t row = width > UINT64_MAX - PITCH ? width : (width + PITCH - 1) / PITCH * PITCH;
    return is_capped() ? alloc(real, a, times(row, (uint64_t)a[3])) : call(real, a);
}

/* Arrays: their size is unknown. */
long on_uncounted(void *real, long *a)
{
    return is_capped() ? uncounted_call(real, a) : call(real, a);
}

/* Forgotten before the call, because another thread may get the same address as soon as it is free. */
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
    return is_capped() ? free_call(real, a, KIND_ADDRESS) : call(real, a);
}

void memory_gone(uint64_t context)
{
    size_t from = 0;
    struct held what;
    while (held_take_of(context, &from, &what))
        forgotten(&what);
}
