/* The head and the tail of each call: ordered failures, the log. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

bool initialised;
static bool is_forked_child;
static int log_fd = -1;
static bool log_is_open;
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;

i64 now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (i64)t.tv_sec * 1000000000 + t.tv_nsec;
}

u64 setting(const char *name, u64 otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

int current_tid(void)
{
    static __thread int tid;
    return tid ? tid : (tid = (int)syscall(SYS_gettid));
}

/* The driver's state is of no use to a forked child, which is told so. */
static void after_fork(void)
{
    is_forked_child = initialised;
}

__attribute__((constructor)) static void prepare(void)
{
    pthread_atfork(NULL, NULL, after_fork);
}

static int log_file(void)
{
    const char *path;

    pthread_mutex_lock(&log_lock);
    if (!log_is_open) {
        path = getenv("FAKE_CUDA_LOG");
        if (path && *path)
            log_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        log_is_open = true;
    }
    pthread_mutex_unlock(&log_lock);
    return log_fd;
}

static void write_line(const char *line, int length)
{
    int saved = errno;

    while (write(log_file(), line, (size_t)length) < 0 && errno == EINTR)
        continue;
    errno = saved;
}

static i64 told(i64 time)
{
    return time == UNKNOWN ? -1 : time;
}

void note_busy(int gpu, void *stream, u64 op, i64 from, i64 to)
{
    char line[256];
    int length;

    if (log_file() < 0)
        return;
    length = snprintf(line, sizeof line,
                      "%d 0 busy %" PRId64 " %" PRId64 " 0 %d %#lx %" PRId64 " %" PRId64 " 0 %" PRIu64 "\n",
                      (int)getpid(), from, to, gpu, (unsigned long)(uintptr_t)stream, from, to, op);
    write_line(line, length);
}

/* "cuMemAlloc_v2=2,cuLaunchKernel=719" */
static int ordered_failure(const char *name)
{
    const char *at = getenv("FAKE_CUDA_FAIL");
    size_t length = strlen(name);

    for (; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, name, length) && at[length] == '=')
            return atoi(at + length + 1);
    return SUCCESS;
}

static bool works_before_init(const char *name)
{
    static const char *const names[] = {"cuInit",           "cuDriverGetVersion", "cuGetErrorName",
                                        "cuGetErrorString", "cuGetProcAddress",   "cuGetProcAddress_v2",
                                        "cuGetExportTable"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i]))
            return true;
    return false;
}

int enter(struct call *c)
{
    c->began = now_ns();
    if ((!initialised || is_forked_child) && !works_before_init(c->name))
        return NOT_INITIALIZED;
    if (is_forked_child && !strcmp(c->name, "cuInit"))
        return NOT_INITIALIZED;
    return ordered_failure(c->name);
}

int leave(struct call *c, int code)
{
    char line[256];
    int length;

    if (log_file() < 0)
        return code;
    length =
        snprintf(line, sizeof line,
                 "%d %d %s %" PRId64 " %" PRId64 " %d %d %#lx %" PRId64 " %" PRId64 " %" PRIu64 " %" PRIu64
                 "\n",
                 (int)getpid(), current_tid(), c->name, c->began, now_ns(), code, c->gpu,
                 (unsigned long)(uintptr_t)c->stream, told(c->busy_from), told(c->busy_to), c->bytes, c->op);
    write_line(line, length);
    return code;
}
