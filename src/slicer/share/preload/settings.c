/* The lock's settings, from the environment. The older names count if ours are not set. */
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "share.h"

enum {
    MOST_LAUNCHES = 1000000,
    MOST_MS = 3600000,
    US = 1000,
    WINDOWS = 10, /* a higher priority waits this many windows for the end of a turn's work, but at least a millisecond */
};

static struct settings chosen;

/* A whole number in a variable, 0 … most. False if it is not set, or invalid, which is reported. */
static bool number(const char *variable, unsigned most, unsigned *value)
{
    const char *text = getenv(variable);
    if (!text || !*text)
        return false;
    /* Not strtoul: glibc 2.38 gives it a name that older versions lack. */
    unsigned long given = 0;
    for (; *text >= '0' && *text <= '9' && given <= most; text++)
        given = given * 10 + (unsigned long)(*text - '0');
    if (*text || given > most) {
        char line[160];
        snprintf(line, sizeof line, "%s is no whole number from 0 to %u, and is ignored", variable, most);
        say(line);
        return false;
    }
    *value = (unsigned)given;
    return true;
}

static bool number_of(const char *variable, const char *older, unsigned most, unsigned *value)
{
    return number(variable, most, value) || number(older, most, value);
}

static void time_of(const char *variable, unsigned otherwise_ms, unsigned *us)
{
    unsigned ms = otherwise_ms;
    number(variable, MOST_MS, &ms);
    *us = ms * US;
}

static void read_settings(void)
{
    unsigned each = 0, ms = 0, launches = 10;
    chosen.mode = MODE_YIELD;
    if (number_of("SLICER_SHARE_LAUNCHES", "CUDA_OVERRIDE_KERNEL_N_SYNC", MOST_LAUNCHES, &launches))
        chosen.mode = launches ? MODE_LAUNCHES : MODE_EACH;
    if (number_of("SLICER_SHARE_TIME_MS", "CUDA_OVERRIDE_MAX_SYNC_MS", MOST_MS, &ms) && ms)
        chosen.mode = MODE_TIME;
    if (number_of("SLICER_SHARE_EACH", "CUDA_OVERRIDE_ALWAYS_LOCK", 1, &each) && each)
        chosen.mode = MODE_EACH;
    chosen.launches = launches;
    chosen.hold_us = ms * US;
    number_of("SLICER_SHARE_SKIP_SYNCS", "CUDA_OVERRIDE_SYNC_LOCK_SKIPS", MOST_LAUNCHES, &chosen.skip_syncs);
    time_of("SLICER_SHARE_QUANTUM_MS", 0, &chosen.quantum_us);
    time_of("SLICER_SHARE_WINDOW_MS", 1, &chosen.window_us);
    time_of("SLICER_SHARE_DRAIN_MS", 2000, &chosen.drain_us);
    unsigned window_us = chosen.window_us > US ? chosen.window_us : US;
    chosen.overtake_us = window_us < UINT_MAX / WINDOWS ? WINDOWS * window_us : UINT_MAX;
}

const struct settings *settings(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_settings);
    return &chosen;
}
