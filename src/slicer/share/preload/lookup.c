/* How programs find the driver's functions: dlsym, cuGetProcAddress, and names that the linker binds (exports.c).
 *
 * The real lookup always goes first. The result for a hooked name is wrapped, pointer by pointer. So each version and
 * each variant (legacy or per-thread default stream) keeps its own target. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "share.h"

typedef void *lookup(void *handle, const char *symbol);

/* Sanitizers look up functions themselves, before they are ready for instrumented code. */
#define EARLY __attribute__((no_sanitize("address"), no_sanitize("thread"), no_sanitize("undefined")))

/* Called only from the assembly below, by this name. */
__attribute__((used, visibility("hidden"))) lookup *slicer_share_dlsym(void *handle, const char *symbol, void **found);

/* The exported dlsym. It asks slicer_share_dlsym, and returns its result, or jumps on to the function that it named,
 * with the original arguments and return address. It is in assembly because the real dlsym uses its return address to
 * find out which library asks (RTLD_NEXT, RTLD_DEFAULT). A compiler may use a jump here, but need not. */
#if defined(__x86_64__)
__asm__(".text\n.globl dlsym\n.type dlsym, @function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    push %rdi\n    .cfi_adjust_cfa_offset 8\n"
        "    push %rsi\n    .cfi_adjust_cfa_offset 8\n"
        "    sub $8, %rsp\n    .cfi_adjust_cfa_offset 8\n"
        "    mov %rsp, %rdx\n"
        "    call slicer_share_dlsym\n"
        "    pop %rdx\n    .cfi_adjust_cfa_offset -8\n"
        "    pop %rsi\n    .cfi_adjust_cfa_offset -8\n"
        "    pop %rdi\n    .cfi_adjust_cfa_offset -8\n"
        "    test %rax, %rax\n"
        "    je 1f\n"
        "    jmp *%rax\n"
        "1:  mov %rdx, %rax\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
static const char *const dlsym_versions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
#elif defined(__aarch64__)
__asm__(".text\n.balign 4\n.globl dlsym\n.type dlsym, %function\n"
        "dlsym:\n"
        "    .cfi_startproc\n"
        "    hint #34\n" /* bti c */
        "    stp x29, x30, [sp, #-48]!\n    .cfi_def_cfa_offset 48\n    .cfi_offset 29, -48\n    .cfi_offset 30, -40\n"
        "    mov x29, sp\n"
        "    stp x0, x1, [sp, #16]\n"
        "    add x2, sp, #32\n"
        "    bl slicer_share_dlsym\n"
        "    mov x16, x0\n"
        "    ldr x17, [sp, #32]\n"
        "    ldp x0, x1, [sp, #16]\n"
        "    ldp x29, x30, [sp], #48\n    .cfi_restore 29\n    .cfi_restore 30\n    .cfi_def_cfa_offset 0\n"
        "    cbz x16, 1f\n"
        "    br x16\n"
        "1:  mov x0, x17\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size dlsym, . - dlsym\n");
static const char *const dlsym_versions[] = {"GLIBC_2.34", "GLIBC_2.17"};
#else
#error "x86-64 and aarch64 only, as CUDA"
#endif

EARLY static lookup *real_dlsym(void)
{
    static _Atomic(void *) known;
    union { void *pointer; lookup *function; } real = {.pointer = atomic_load_explicit(&known, memory_order_acquire)};
    for (size_t i = 0; !real.pointer && i < sizeof dlsym_versions / sizeof *dlsym_versions; i++) {
        real.pointer = dlvsym(RTLD_NEXT, "dlsym", dlsym_versions[i]);
        atomic_store_explicit(&known, real.pointer, memory_order_release);
    }
    return real.function;
}

static bool is_ours(const void *address)
{
    static const char here;
    Dl_info us, other;
    return dladdr(&here, &us) && dladdr(address, &other) && us.dli_fbase == other.dli_fbase;
}

/* A handle of a library that is already loaded, kept for good. Never loads it. */
static void *loaded(const char *soname)
{
    return dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
}

static void *find(lookup *real, const char *symbol)
{
    static _Atomic(void *) handles[2]; /* kept, so that the program cannot unload the functions */
    bool is_nvml = strncmp(symbol, "nvml", 4) == 0;
    void *handle = atomic_load(&handles[is_nvml]);
    void *found = real(RTLD_NEXT, symbol);
    if (!handle && (handle = loaded(is_nvml ? "libnvidia-ml.so.1" : "libcuda.so.1")) != NULL)
        atomic_store(&handles[is_nvml], handle);
    return found || !handle ? found : real(handle, symbol);
}

void *driver(const char *symbol)
{
    int before = errno;
    lookup *real = real_dlsym();
    void *found = real ? find(real, symbol) : NULL;
    dlerror(); /* failed attempts before this one are not the program's business, nor is errno */
    errno = before;
    return found;
}

static void *wrapped(lookup *real, void *handle, const char *symbol, const struct hook *hook)
{
    int before = errno;
    void *found = real(handle, symbol);
    if (found && is_ours(found)) {
        /* It is in the global scope, because this library is. But is the driver there, too? */
        if (!driver(symbol))
            found = real(RTLD_NEXT, symbol); /* NULL, with a dlerror that says so */
    } else if (found)
        found = wrapper_of(hook, found);
    errno = before;
    return found;
}

EARLY static bool may_be_hooked(const char *symbol)
{
    return (symbol[0] == 'c' && symbol[1] == 'u') || (symbol[0] == 'n' && symbol[1] == 'v' && symbol[2] == 'm');
}

EARLY lookup *slicer_share_dlsym(void *handle, const char *symbol, void **found)
{
    lookup *real = real_dlsym();
    /* A library that asks for the next one after itself (RTLD_NEXT) is already in the call's path, behind or before us.
     * And only a jump tells the real dlsym who asks. */
    if (real && (!symbol || handle == RTLD_NEXT || !may_be_hooked(symbol)))
        return real;
    const struct hook *hook = symbol ? hook_of(symbol) : NULL;
    if (real && !hook)
        return real;
    *found = real ? wrapped(real, handle, symbol, hook) : NULL;
    return NULL;
}

enum { PER_THREAD_DEFAULT_STREAM = 2 }; /* in its flags */

/* cuGetProcAddress(symbol, **function, version, flags), _v2 with one more: the handler is the same. */
long on_get_proc_address(void *real, long *a)
{
    const char *symbol = (const char *)a[0];
    void **function = (void **)a[1];
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS || !symbol || !function || !*function)
        return result;
    const struct hook *hook = hook_of_asked(symbol, (a[3] & PER_THREAD_DEFAULT_STREAM) != 0);
    if (hook && !is_ours(*function))
        *function = wrapper_of(hook, *function);
    return result;
}
