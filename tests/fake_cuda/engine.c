/* Streams, and when their work runs.
 *
 * No thread runs the work: when a piece of it begins and ends follows from what is ahead of it, so it is
 * worked out when it is put in. What cannot be told yet (a kernel that waits for another process, time
 * slices) stays in a list, and whoever asks works it out as far as it goes. A thread does so in their place
 * only where something must happen at its time.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "fake.h"

#define MAGIC UINT64_C(0x73747265616d)
static const i64 PAUSE_NS = 200000;

struct pending {
    struct pending *next;
    struct stream *stream;
    struct work work;
    i64 put, from, to;
    u64 number, op, serial;
    bool has_met;
    struct call *call;
};

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pending *first;
static u64 pass, ops;
static bool has_thread;
static __thread bool is_thread;

static i64 later(i64 one, i64 other)
{
    return one > other ? one : other;
}

static void sleep_until(i64 at)
{
    struct timespec t = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        continue;
}

/* What is destroyed and done goes, so that a program may make as many streams as it likes. */
static void prune(struct context *context)
{
    struct stream **at = &context->streams, *s;
    i64 now = now_ns();

    while ((s = *at))
        if (!s->alive && !s->watchers && s->settled == s->submitted && s->end <= now) {
            *at = s->next;
            s->magic = 0;
            free(s);
        } else {
            at = &s->next;
        }
}

struct stream *new_stream(struct context *context, bool blocking, bool legacy, int owner)
{
    struct stream *s = calloc(1, sizeof *s);

    prune(context);
    s->magic = MAGIC;
    s->context = context;
    s->alive = true;
    s->blocking = blocking;
    s->legacy = legacy;
    s->owner = owner;
    s->next = context->streams;
    context->streams = s;
    return s;
}

static struct stream *default_stream(struct context *context, bool per_thread)
{
    int tid = per_thread ? current_tid() : 0;

    for (struct stream *s = context->streams; s; s = s->next)
        if (per_thread ? s->owner == tid : s->legacy)
            return s;
    return new_stream(context, true, false, tid);
}

struct stream *resolve_stream(void *handle, int per_thread, int *code)
{
    struct context *context = current_context();
    struct stream *s = handle;

    *code = SUCCESS;
    if ((uintptr_t)handle > 2) {
        *code = s->magic == MAGIC && s->alive ? SUCCESS : INVALID_HANDLE;
        return *code == SUCCESS ? s : NULL;
    }
    if (!context) {
        *code = INVALID_CONTEXT;
        return NULL;
    }
    pthread_mutex_lock(&lock);
    s = default_stream(context, handle ? (uintptr_t)handle == 2 : per_thread);
    pthread_mutex_unlock(&lock);
    return s;
}

/* When it can begin, if all that is ahead of it is settled; UNKNOWN if not. */
static i64 beginning(struct pending *p)
{
    struct stream *s = p->stream;
    struct context *context = s->context;
    i64 at = later(p->put, s->end);

    if (p->number != s->settled || (s->legacy && context->blocking_pass == pass) ||
        (s->blocking && !s->legacy && context->legacy_pass == pass))
        return UNKNOWN;
    for (struct stream *other = context->streams; other; other = other->next)
        if (s->legacy ? other->blocking : s->blocking && other->legacy)
            at = later(at, other->end);
    return at;
}

static bool meet(struct pending *p, i64 from)
{
    struct meeting *m = &shared->meetings[p->work.meeting % MEETINGS];
    i64 latest = m->latest;

    if (!p->has_met) {
        while (latest < from && !atomic_compare_exchange_weak(&m->latest, &latest, from))
            continue;
        m->count++;
        p->has_met = true;
    }
    p->to = later(from, m->latest) + p->work.duration;
    return m->count >= p->work.parties;
}

static bool holds(const struct work *w)
{
    u64 is = w->bytes == 8 ? *(volatile u64 *)w->address : *(volatile uint32_t *)w->address;

    switch (w->flags & 3) {
    case 0:
        return w->bytes == 8 ? (i64)(is - w->value) >= 0 : (int32_t)((uint32_t)is - (uint32_t)w->value) >= 0;
    case 1: return is == w->value;
    case 2: return (is & w->value) != 0;
    default: return ~(is | w->value) != 0;
    }
}

static void write_value(const struct work *w)
{
    if (w->bytes == 8)
        *(volatile u64 *)w->address = w->value;
    else
        *(volatile uint32_t *)w->address = (uint32_t)w->value;
}

static void run_host(struct pending *p)
{
    pthread_mutex_unlock(&lock);
    p->work.function(p->work.argument);
    pthread_mutex_lock(&lock);
}

/* Whether its end can be told: then p->from and p->to are set. */
static bool can_settle(struct pending *p)
{
    struct work *w = &p->work;
    i64 now = now_ns(), from = beginning(p);

    p->from = from;
    p->to = from == UNKNOWN ? UNKNOWN : from + w->duration;
    if (from == UNKNOWN || (w->kind >= WAIT_VALUE && from > now))
        return false;
    switch (w->kind) {
    case KERNEL: return !serial || serial_look(p->stream->context->ordinal, p->serial, &p->from, &p->to);
    case MEET: return meet(p, from);
    case RECORD:
        w->moment->at = from;
        w->moment->is_known = true;
        return true;
    case WAIT: p->to = w->moment->is_known ? later(from, w->moment->at) : UNKNOWN; return w->moment->is_known;
    case WAIT_VALUE: p->to = now; return holds(w);
    case WRITE_VALUE:
        write_value(w);
        p->to = now;
        return true;
    case HOST:
        if (is_thread)
            run_host(p);
        p->to = now_ns();
        return is_thread;
    }
    return false;
}

static void settled(struct pending *p)
{
    struct stream *s = p->stream;
    int gpu = gpus[s->context->ordinal].index;
    bool is_busy = p->work.kind <= MEET;

    s->end = p->to;
    s->ends[p->number % DEPTH] = p->to;
    s->settled++;
    if (p->call && is_busy) {
        p->call->busy_from = p->from;
        p->call->busy_to = p->to;
    } else if (is_busy) {
        note_busy(gpu, s, p->op, p->from, p->to);
    }
}

/* With `lock`. Works out all that can be told now. */
static void settle(void)
{
    struct pending **at = &first, *p;

    pass++;
    while ((p = *at)) {
        if (can_settle(p)) {
            settled(p);
            /* run_host gave the lock away: the list may have changed */
            if (p->work.kind == HOST)
                for (at = &first; *at != p;)
                    at = &(*at)->next;
            *at = p->next;
            free(p);
            continue;
        }
        if (p->stream->legacy)
            p->stream->context->legacy_pass = pass;
        else if (p->stream->blocking)
            p->stream->context->blocking_pass = pass;
        at = &p->next;
    }
}

static void *run_thread(void *nothing)
{
    is_thread = true;
    for (;;) {
        pthread_mutex_lock(&lock);
        settle();
        pthread_mutex_unlock(&lock);
        sleep_until(now_ns() + PAUSE_NS);
    }
    return nothing;
}

/* With `lock`. */
static void need_thread(void)
{
    sigset_t every, before;
    pthread_t thread;

    if (has_thread)
        return;
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    has_thread = !pthread_create(&thread, NULL, run_thread, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (has_thread)
        pthread_detach(thread);
}

/* With `lock`. When the piece of work before `number` ends; UNKNOWN, or 0 if it is long over. */
static i64 end_before(struct stream *s, u64 number)
{
    if (!number || number + DEPTH <= s->submitted)
        return 0;
    return number <= s->settled ? s->ends[(number - 1) % DEPTH] : UNKNOWN;
}

/* With `lock`, which it gives away meanwhile. */
static void wait_before(struct stream *s, u64 number)
{
    i64 end;

    for (;;) {
        settle();
        end = end_before(s, number);
        if (end <= now_ns() || !s->context->alive)
            return;
        pthread_mutex_unlock(&lock);
        sleep_until(end == UNKNOWN ? now_ns() + PAUSE_NS : end);
        pthread_mutex_lock(&lock);
    }
}

static void put(struct call *c, struct stream *s, const struct work *w)
{
    struct pending *p = calloc(1, sizeof *p), **at = &first;

    *p = (struct pending){
        .stream = s, .work = *w, .put = now_ns(), .number = s->submitted, .op = ++ops, .call = c};
    if (serial && w->kind == KERNEL)
        p->serial = serial_submit(s->context->ordinal, w->duration);
    while (*at)
        at = &(*at)->next;
    *at = p;
    s->ends[s->submitted++ % DEPTH] = UNKNOWN;
    c->op = p->op;
    c->busy_from = c->busy_to = w->kind <= MEET ? UNKNOWN : 0;
    if (w->kind >= WAIT_VALUE || w->kind == MEET)
        need_thread();
    settle();
    for (p = first; p; p = p->next)
        p->call = p->call == c ? NULL : p->call;
}

int submit(struct call *c, struct stream *s, const struct work *w)
{
    int code;

    pthread_mutex_lock(&lock);
    c->stream = s;
    c->gpu = gpus[s->context->ordinal].index;
    code = legacy_while_capturing(s);
    if (code == SUCCESS && s->capture) {
        code = add_to_graph(s, w);
    } else if (code == SUCCESS) {
        while (s->submitted >= DEPTH && end_before(s, s->submitted - DEPTH + 1) > now_ns())
            wait_before(s, s->submitted - DEPTH + 1);
        put(c, s, w);
    }
    pthread_mutex_unlock(&lock);
    return code;
}

void wait_for_stream(struct stream *s)
{
    pthread_mutex_lock(&lock);
    wait_before(s, s->submitted);
    pthread_mutex_unlock(&lock);
}

/* Only what was put in before: others may go on putting in more. */
void wait_for_context(struct context *context)
{
    struct {
        struct stream *stream;
        u64 number;
    } *all;
    size_t count = 0;

    pthread_mutex_lock(&lock);
    for (struct stream *s = context->streams; s; s = s->next)
        count++;
    all = calloc(count + 1, sizeof *all);
    count = 0;
    for (struct stream *s = context->streams; s; s = s->next, count++) {
        all[count].stream = s;
        all[count].number = s->submitted;
        s->watchers++;
    }
    for (size_t i = 0; i < count; i++) {
        wait_before(all[i].stream, all[i].number);
        all[i].stream->watchers--;
    }
    pthread_mutex_unlock(&lock);
    free(all);
}

bool is_stream_done(struct stream *s)
{
    bool is_done;

    pthread_mutex_lock(&lock);
    settle();
    is_done = end_before(s, s->submitted) <= now_ns();
    pthread_mutex_unlock(&lock);
    return is_done;
}

bool has_come(struct moment *moment)
{
    bool has;

    pthread_mutex_lock(&lock);
    settle();
    has = !moment || (moment->is_known && moment->at <= now_ns());
    pthread_mutex_unlock(&lock);
    return has;
}

void wait_for_moment(struct moment *moment)
{
    while (!has_come(moment))
        sleep_until(moment->is_known ? moment->at : now_ns() + PAUSE_NS);
}

void forget_streams(struct context *context)
{
    struct pending **at = &first, *p;

    while ((p = *at))
        if (p->stream->context == context) { /* a context that goes takes its work along */
            *at = p->next;
            free(p);
        } else {
            at = &p->next;
        }
    for (struct stream *s = context->streams; s; s = s->next)
        s->alive = false;
    context->streams = NULL;
}
