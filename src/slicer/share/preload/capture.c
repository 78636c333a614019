/* Captures: while a program records a graph, nothing may be synchronised in its process: that would break the capture.
 * And what it records is no work yet. */
#include "gate.h"

#include <errno.h>
#include <string.h>

enum { CAPTURES = 256, PER_THREAD_STREAM = 2, WRONG_THREAD = 908 };

struct capture {
    uintptr_t stream; /* 0: free */
    pid_t thread;     /* of a per-thread stream, which has the same handle in all threads; else 0 */
    void *context;
};

static struct capture captures[CAPTURES];
static pthread_mutex_t changing = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t open; /* captures, also those that are about to begin */
static _Atomic uint32_t holds; /* synchronisations that go on */

bool capture_is_open(void)
{
    return atomic_load(&open) != 0;
}

bool capture_is_on(uintptr_t stream)
{
    typedef int is_capturing(void *, int *);
    static _Atomic(void *) known;
    union { void *pointer; is_capturing *function; } u = {.pointer = atomic_load(&known)};
    int status = 0, before = errno;
    if (!u.pointer)
        atomic_store(&known, u.pointer = driver("cuStreamIsCapturing"));
    errno = before;
    /* The legacy default stream cannot be captured, and shares its handle 0 with the per-thread one. */
    return u.pointer && u.function((void *)(stream ? stream : PER_THREAD_STREAM), &status) == CUDA_SUCCESS && status;
}

/* -- captures and synchronisations keep each other out ------------------------------------------------------------- */

/* Each side says first that it is there and then looks for the other: so at least one of them sees the other. */
bool capture_hold(void)
{
    atomic_fetch_add(&holds, 1);
    if (!atomic_load(&open))
        return true;
    atomic_fetch_sub(&holds, 1);
    return false;
}

void capture_release(void)
{
    if (atomic_fetch_sub(&holds, 1) == 1)
        futex_wake(&holds);
}

/* The work that is waited for may itself wait for this thread: so not without limit. */
static void wait_for_holds(void)
{
    uint64_t start = now_ns(), limit = settings()->drain_us * UINT64_C(1000);
    uint32_t seen;
    while ((seen = atomic_load(&holds)) != 0 && now_ns() - start < limit)
        futex_wait(&holds, seen, NS_A_MS);
}

/* -- begun and ended ----------------------------------------------------------------------------------------------- */

static struct capture key(uintptr_t stream)
{
    struct capture it = {.stream = stream ? stream : PER_THREAD_STREAM};
    it.thread = it.stream == PER_THREAD_STREAM ? (pid_t)syscall(SYS_gettid) : 0;
    return it;
}

static void remember(struct capture it, void *context)
{
    it.context = context;
    pthread_mutex_lock(&changing);
    for (int i = 0; i < CAPTURES; i++)
        if (!captures[i].stream) {
            captures[i] = it;
            atomic_fetch_add(&open, 1);
            break;
        }
    pthread_mutex_unlock(&changing);
}

static void forget(struct capture it)
{
    pthread_mutex_lock(&changing);
    for (int i = 0; i < CAPTURES; i++)
        if (captures[i].stream == it.stream && captures[i].thread == it.thread) {
            memset(&captures[i], 0, sizeof captures[i]);
            atomic_fetch_sub(&open, 1);
            break;
        }
    pthread_mutex_unlock(&changing);
}

long on_capture_begin(void *real, long *a)
{
    int before = errno;
    struct capture it = key((uintptr_t)a[0]);
    remember(it, context_of_thread());
    wait_for_holds();
    errno = before;
    long result = call(real, a);
    if ((int)result != CUDA_SUCCESS)
        forget(it);
    return result;
}

long on_capture_end(void *real, long *a)
{
    struct capture it = key((uintptr_t)a[0]);
    long result = call(real, a);
    if ((int)result != WRONG_THREAD) /* any other error has ended the capture too */
        forget(it);
    return result;
}

long on_stream_gone(void *real, long *a)
{
    struct capture it = {.stream = (uintptr_t)a[0]};
    if (it.stream > PER_THREAD_STREAM)
        forget(it); /* before its handle can be another stream's */
    return call(real, a);
}

void capture_forget(const void *context)
{
    pthread_mutex_lock(&changing);
    for (int i = 0; i < CAPTURES; i++)
        if (captures[i].stream && captures[i].context == context) {
            memset(&captures[i], 0, sizeof captures[i]);
            atomic_fetch_sub(&open, 1);
        }
    pthread_mutex_unlock(&changing);
}

void capture_after_fork(void)
{
    mutex_after_fork(&changing);
    memset(captures, 0, sizeof captures);
    atomic_store(&open, 0);
    atomic_store(&holds, 0);
}
