/* A program that uses CUDA, a command at a time: `client HOW` reads commands from its input and answers each
 * with one line, the result (a CUresult) and what else there is to say. Streams, memory, events and graphs
 * are named by number, in the order in which they were made; the stream "-" is the default one.
 */
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client.h"

struct objects things;
static _Atomic int busy_stop;
static _Atomic long progress;
static pthread_t background;
static struct answer background_answer;
static char background_line[256];

static const struct command *command_of(const char *name)
{
    const struct command *const tables[] = {commands, process_commands};

    for (int i = 0; i < 2; i++)
        for (const struct command *c = tables[i]; c->name; c++)
            if (!strcmp(c->name, name))
                return c;
    return NULL;
}

void say(struct answer *to, const char *format, ...)
{
    size_t used = strlen(to->text);
    va_list list;

    va_start(list, format);
    vsnprintf(to->text + used, sizeof to->text - used, format, list);
    va_end(list);
}

/* Runs one command line; `line` is taken apart. */
void run(char *line, struct answer *to)
{
    char *words[16] = {0}, *rest;
    int count = 0;
    const struct command *c;

    to->text[0] = 0;
    for (char *word = strtok_r(line, " \n", &rest); word && count < 16; word = strtok_r(NULL, " \n", &rest))
        words[count++] = word;
    c = count ? command_of(words[0]) : NULL;
    to->code = c ? c->run(words + 1, count - 1, to) : -1;
    if (!c)
        say(to, " unknown command");
}

static void join_words(char **words, int count, char *to, size_t size)
{
    to[0] = 0;
    for (int i = 0; i < count; i++) {
        strncat(to, words[i], size - strlen(to) - 1);
        strncat(to, " ", size - strlen(to) - 1);
    }
}

/* -- threads and processes -- */

static void *in_background(void *context)
{
    cuda.cuCtxSetCurrent(context);
    run(background_line, &background_answer);
    return NULL;
}

/* "later COMMAND…": runs it in a thread; "join" answers its result. */
static int later(char **words, int count, struct answer *to)
{
    pointer context = NULL;

    (void)to;
    join_words(words, count, background_line, sizeof background_line);
    cuda.cuCtxGetCurrent(&context);
    return pthread_create(&background, NULL, in_background, context);
}

static int join(char **words, int count, struct answer *to)
{
    (void)words, (void)count;
    pthread_join(background, NULL);
    say(to, "%s", background_answer.text);
    return background_answer.code;
}

struct member {
    pthread_t thread;
    pointer context;
    char line[256];
    struct answer answer;
};

static void *in_team(void *argument)
{
    struct member *me = argument;

    cuda.cuCtxSetCurrent(me->context);
    run(me->line, &me->answer);
    return NULL;
}

/* "threads N COMMAND…": in so many threads at once; says how many had the result 0. */
static int threads(char **words, int count, struct answer *to)
{
    int size = atoi(words[0]), good = 0;
    struct member *team = calloc((size_t)size, sizeof *team);
    pointer context = NULL;

    cuda.cuCtxGetCurrent(&context);
    for (int i = 0; i < size; i++) {
        team[i].context = context;
        join_words(words + 1, count - 1, team[i].line, sizeof team[i].line);
        if (pthread_create(&team[i].thread, NULL, in_team, &team[i]))
            abort();
    }
    for (int i = 0; i < size; i++) {
        pthread_join(team[i].thread, NULL);
        good += !team[i].answer.code;
    }
    free(team);
    say(to, " %d", good);
    return 0;
}

/* "fork COMMAND;COMMAND…": in a child; answers what the last one answered there. */
static int forked(char **words, int count, struct answer *to)
{
    char line[256], *rest;
    int pipes[2], status;
    pid_t child;
    struct answer answer = {0};

    if (pipe(pipes))
        return -1;
    join_words(words, count, line, sizeof line);
    child = fork();
    if (!child) {
        for (char *one = strtok_r(line, ";", &rest); one; one = strtok_r(NULL, ";", &rest))
            run(one, &answer);
        if (write(pipes[1], &answer, sizeof answer) < 0)
            _exit(1);
        _exit(0);
    }
    close(pipes[1]);
    if (read(pipes[0], &answer, sizeof answer) != sizeof answer)
        answer.code = -1;
    close(pipes[0]);
    waitpid(child, &status, 0);
    say(to, "%s %d", answer.text, status);
    return answer.code;
}

/* "orphan": a child that does nothing, and stays when its parent goes; says its pid. */
static int orphan(char **words, int count, struct answer *to)
{
    pid_t child = fork();

    (void)words, (void)count;
    while (!child)
        pause();
    say(to, " %d", (int)child);
    return child < 0;
}

/* -- work without end -- */

struct endless {
    pointer context;
    long us, every;
};

static void *hammer(void *argument)
{
    struct endless how = *(struct endless *)argument;

    free(argument);
    cuda.cuCtxSetCurrent(how.context);
    for (long i = 1; !busy_stop; i++) {
        if (launch(how.us, NULL) || (how.every && i % how.every == 0 && cuda.cuCtxSynchronize()))
            break;
        progress++;
    }
    return NULL;
}

/* "hammer US EVERY": a thread launches kernels, and waits for them after each EVERY. "halt" ends it,
 * "progress" counts. */
static int start_hammer(char **words, int count, struct answer *to)
{
    struct endless *how = calloc(1, sizeof *how);

    (void)to;
    how->us = atol(words[0]);
    how->every = count > 1 ? atol(words[1]) : 0;
    cuda.cuCtxGetCurrent(&how->context);
    busy_stop = 0;
    return pthread_create(&background, NULL, hammer, how);
}

static int halt(char **words, int count, struct answer *to)
{
    (void)words, (void)count;
    busy_stop = 1;
    pthread_join(background, NULL);
    say(to, " %ld", progress);
    return 0;
}

static int tell_progress(char **words, int count, struct answer *to)
{
    (void)words, (void)count;
    say(to, " %ld", progress);
    return 0;
}

static int become(char **words, int count, struct answer *to)
{
    (void)count, (void)to;
    execvp(words[0], words);
    return -1;
}

/* "closeall": closes every descriptor but its input and output, as programs that start others do; and but the
 * fake driver's, of which a test reads. Says how many there were. */
static int close_all(char **words, int count, struct answer *to)
{
    char path[64], link[4096];
    int closed = 0;
    ssize_t length;

    (void)words, (void)count;
    for (int fd = 3; fd < 4096; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        length = readlink(path, link, sizeof link - 1);
        link[length < 0 ? 0 : length] = 0;
        if (length > 0 && !strstr(link, "/cuda-"))
            closed += !close(fd);
    }
    say(to, " %d", closed);
    return 0;
}

static void on_alarm(int number)
{
    (void)number;
}

/* "alarms US": a signal every so often from now on, which interrupts system calls. */
static int start_alarms(char **words, int count, struct answer *to)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, atoi(words[0])}, {0, atoi(words[0])}};

    (void)count, (void)to;
    sigaction(SIGALRM, &action, NULL);
    return setitimer(ITIMER_REAL, &often, NULL);
}

/* "cancel": cancels the thread of "later", and waits for its end. */
static int cancel(char **words, int count, struct answer *to)
{
    void *result;

    (void)words, (void)count;
    pthread_cancel(background);
    pthread_join(background, &result);
    say(to, result == PTHREAD_CANCELED ? " cancelled" : " ended");
    return 0;
}

const struct command process_commands[] = {
    {"later", later},   {"join", join},           {"threads", threads},     {"fork", forked},
    {"orphan", orphan}, {"hammer", start_hammer}, {"halt", halt},           {"progress", tell_progress},
    {"exec", become},   {"closeall", close_all},  {"alarms", start_alarms}, {"cancel", cancel},
    {NULL, NULL},
};

EXPORTED int client_main(int argc, char **argv)
{
    char line[256];
    struct answer answer;

    if (argc < 2 || find_driver(argv[1]))
        return 2;
    setvbuf(stdin, NULL, _IONBF, 0); /* what follows an "exec" is for the next program */
    while (fgets(line, sizeof line, stdin)) {
        run(line, &answer);
        printf("%d%s\n", answer.code, answer.text);
        fflush(stdout);
    }
    return 0;
}

int main(int argc, char **argv)
{
    return client_main(argc, argv);
}
