/* A job that notes when it ran: appends "ID START END" (ns of CLOCK_MONOTONIC) to LOG.
 *
 *     mark LOG ID HOLD_MS [GATE]
 *
 * It stays for HOLD_MS, and with GATE, a FIFO, until the gate's last writer has closed it. Built static, so that START is
 * within microseconds of the first instruction and END of the last.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int main(int argc, char **argv)
{
    long long start = now();
    long hold_ms = argc > 3 ? atol(argv[3]) : 0;
    struct timespec hold = {hold_ms / 1000, hold_ms % 1000 * 1000000};
    char line[128], byte;
    int log, gate, length;

    if (argc < 4 || (log = open(argv[1], O_WRONLY | O_APPEND)) < 0)
        return 1;
    if (argc > 4) {
        if ((gate = open(argv[4], O_RDONLY)) < 0)
            return 1;
        while (read(gate, &byte, 1) > 0) {
        }
    }
    nanosleep(&hold, NULL);
    length = snprintf(line, sizeof line, "%s %lld %lld\n", argv[2], start, now());
    _exit(write(log, line, length) == length ? 0 : 1);
}
