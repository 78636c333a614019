/* Points at which a test kills, stops or holds up a process. Only in a library that was built for tests.
 *
 *   SLICER_SHARE_FAULTS=POINT:ACT[@N][,…]  at the Nth time that this process comes to POINT (else at the first);
 *                                          ACT is kill, stop, or wait=PATH: until there is such a file
 *   SLICER_SHARE_FAULTS_TOKEN=PATH         only in the one process that removes this file
 */
#include "share.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { POINTS = 64, TEXT = 1024 };

/* How often this process came to the fault with this number in the list. */
static unsigned count_of(unsigned number)
{
    static _Atomic unsigned counts[POINTS];
    return number < POINTS ? atomic_fetch_add(&counts[number], 1) + 1 : 0;
}

static bool is_meant(void)
{
    const char *token = getenv("SLICER_SHARE_FAULTS_TOKEN");
    return token == NULL || unlink(token) == 0;
}

static void act(const char *what)
{
    if (strcmp(what, "kill") == 0)
        kill(getpid(), SIGKILL);
    else if (strcmp(what, "stop") == 0)
        kill(getpid(), SIGSTOP);
    else if (strncmp(what, "wait=", 5) == 0)
        while (access(what + 5, F_OK) != 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

void fault(const char *point)
{
    const char *list = getenv("SLICER_SHARE_FAULTS");
    char text[TEXT];
    if (list == NULL || strlen(list) >= sizeof text)
        return;
    int saved = errno;
    strcpy(text, list);
    unsigned number = 0;
    char *rest = NULL;
    for (char *one = strtok_r(text, ",", &rest); one != NULL; one = strtok_r(NULL, ",", &rest), number++) {
        char *what = strchr(one, ':');
        if (what == NULL)
            continue;
        *what++ = '\0';
        if (strcmp(one, point) != 0)
            continue;
        char *at = strrchr(what, '@');
        unsigned wanted = 1;
        if (at != NULL) {
            *at = '\0';
            wanted = (unsigned)strtoul(at + 1, NULL, 10);
        }
        if (count_of(number) == wanted && is_meant())
            act(what);
    }
    errno = saved;
}
