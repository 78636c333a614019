/* Messages to the program's user: few, each once, and only on stderr. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "share.h"

/* One write that never blocks, so that the program does not hang on a reader that does not read. If the reader is gone,
 * the program gets no SIGPIPE. */
bool say(const char *text)
{
    int before = errno;
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    bool is_ready = poll(&out, 1, 0) == 1 && (out.revents & POLLOUT);
    if (!is_ready)
        return false;
    char line[512];
    int length = snprintf(line, sizeof line, "slicer: %.500s\n", text);
    sigset_t pipe, old, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe, &old);
    ssize_t written = write(STDERR_FILENO, line, (size_t)length);
    if (written < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    errno = before;
    return true;
}

void trouble(uint32_t bit, const char *text)
{
    static _Atomic uint32_t said;
    int before = errno;
    struct job_file *file = job();
    if (file)
        atomic_fetch_or_explicit(&file->troubles, bit, memory_order_relaxed);
    if (!(atomic_fetch_or(&said, bit) & bit) && !say(text))
        atomic_fetch_and(&said, ~bit); /* perhaps next time */
    errno = before;
}
