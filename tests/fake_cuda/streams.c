/* The API of streams and events. */
#include <stdlib.h>

#include "fake.h"

#define EVENT_MAGIC UINT64_C(0x6576656e74)
enum { NON_BLOCKING = 1 };

static int create(void **to, unsigned flags, int priority)
{
    struct context *context = current_context();
    struct stream *s;

    if (!context)
        return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    s = new_stream(context, !(flags & NON_BLOCKING), false, 0);
    s->priority = priority;
    pthread_mutex_unlock(&lock);
    *to = s;
    return SUCCESS;
}

static int destroy(void *handle)
{
    struct stream *s;
    int code;

    if ((uintptr_t)handle <= 2)
        return INVALID_HANDLE;
    s = resolve_stream(handle, 0, &code);
    if (s)
        s->alive = false;
    return code;
}

static int locked(int (*check)(struct stream *), struct stream *s)
{
    int code;

    pthread_mutex_lock(&lock);
    code = check(s);
    pthread_mutex_unlock(&lock);
    return code;
}

static int look(struct call *c, void *handle, int per_thread, bool waits)
{
    int code;
    struct stream *s = resolve_stream(handle, per_thread, &code);

    c->stream = s;
    if (code == SUCCESS)
        code = locked(sync_of_capture, s);
    if (code != SUCCESS)
        return code;
    if (waits) {
        wait_for_stream(s);
        observe_frees();
    }
    return waits || is_stream_done(s) ? SUCCESS : NOT_READY;
}

static struct event *checked_event(void *handle)
{
    struct event *event = handle;
    return event && event->magic == EVENT_MAGIC ? event : NULL;
}

static int create_event(void **to)
{
    struct event *event = calloc(1, sizeof *event);

    if (!current_context())
        return free(event), INVALID_CONTEXT;
    event->magic = EVENT_MAGIC;
    *to = event;
    return SUCCESS;
}

static int destroy_event(void *handle)
{
    struct event *event = checked_event(handle);

    if (!event)
        return INVALID_HANDLE;
    event->magic = 0;
    free(event);
    return SUCCESS;
}

static int record(struct call *c, void *handle, void *stream, int per_thread)
{
    struct event *event = checked_event(handle);
    struct work w = {.kind = RECORD};
    struct stream *s;
    int code;

    if (!event)
        return INVALID_HANDLE;
    s = resolve_stream(stream, per_thread, &code);
    if (code != SUCCESS)
        return code;
    event->capture = s->capture;
    if (s->capture)
        return submit(c, s, &w);
    w.moment = calloc(1, sizeof *w.moment); /* what waits for the event's last record keeps the one before */
    event->moment = w.moment;
    return submit(c, s, &w);
}

static int join(struct stream *s, struct capture *capture)
{
    if (s->capture && s->capture != capture)
        return CAPTURE_MERGE;
    s->capture = capture;
    return SUCCESS;
}

static int wait_event(struct call *c, void *stream, void *handle, int per_thread)
{
    struct event *event = checked_event(handle);
    struct work w = {.kind = WAIT};
    struct stream *s;
    int code;

    if (!event)
        return INVALID_HANDLE;
    s = resolve_stream(stream, per_thread, &code);
    if (code != SUCCESS)
        return code;
    if (event->capture)
        return join(s, event->capture);
    if (!event->moment)
        return SUCCESS;
    w.moment = event->moment;
    return submit(c, s, &w);
}

static int look_at_event(void *handle, bool waits)
{
    struct event *event = checked_event(handle);
    int code;

    if (!event)
        return INVALID_HANDLE;
    if (event->capture)
        return CAPTURED_EVENT;
    pthread_mutex_lock(&lock);
    code = unsafe_call();
    pthread_mutex_unlock(&lock);
    if (code != SUCCESS)
        return code;
    if (waits) {
        wait_for_moment(event->moment);
        observe_frees();
    }
    return waits || has_come(event->moment) ? SUCCESS : NOT_READY;
}

static int elapsed(float *to, void *from_handle, void *to_handle)
{
    struct event *from = checked_event(from_handle), *end = checked_event(to_handle);

    if (!from || !end || !from->moment || !end->moment)
        return INVALID_HANDLE;
    if (!has_come(from->moment) || !has_come(end->moment))
        return NOT_READY;
    *to = (float)(end->moment->at - from->moment->at) / 1e6f;
    return SUCCESS;
}

static int value(struct call *c, enum kind kind, void *stream, int per_thread, u64 address, u64 value,
                 unsigned flags, unsigned bytes)
{
    struct work w = {
        .kind = kind, .address = (void *)(uintptr_t)address, .value = value, .flags = flags, .bytes = bytes};
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    return code == SUCCESS ? submit(c, s, &w) : code;
}

static int host(struct call *c, void *stream, int per_thread, void (*function)(void *), void *argument)
{
    struct work w = {.kind = HOST, .function = function, .argument = argument};
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    return code == SUCCESS ? submit(c, s, &w) : code;
}

static int give_context(void **to, void *stream, int per_thread)
{
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    if (s)
        *to = s->context;
    return code;
}

static int give_flags(unsigned *to, void *stream, int per_thread)
{
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    if (s)
        *to = s->blocking ? 0 : NON_BLOCKING;
    return code;
}

API(cuStreamCreate, (void **to, unsigned flags), create(to, flags, 0))
API(cuStreamCreateWithPriority, (void **to, unsigned flags, int priority), create(to, flags, priority))
API(cuStreamDestroy, (void *s), destroy(s))
API(cuStreamDestroy_v2, (void *s), destroy(s))
BOTH(cuStreamSynchronize, _ptsz, (void *s), look(&c, s, PER_THREAD, true))
BOTH(cuStreamQuery, _ptsz, (void *s), look(&c, s, PER_THREAD, false))
BOTH(cuStreamWaitEvent, _ptsz, (void *s, void *event, unsigned flags), (void)flags,
     wait_event(&c, s, event, PER_THREAD))
BOTH(cuStreamGetCtx, _ptsz, (void *s, void **to), give_context(to, s, PER_THREAD))
BOTH(cuStreamGetFlags, _ptsz, (void *s, unsigned *to), give_flags(to, s, PER_THREAD))
BOTH(cuStreamWaitValue32_v2, _ptsz, (void *s, u64 address, uint32_t what, unsigned flags),
     value(&c, WAIT_VALUE, s, PER_THREAD, address, what, flags, 4))
BOTH(cuStreamWaitValue64_v2, _ptsz, (void *s, u64 address, u64 what, unsigned flags),
     value(&c, WAIT_VALUE, s, PER_THREAD, address, what, flags, 8))
BOTH(cuStreamWriteValue32_v2, _ptsz, (void *s, u64 address, uint32_t what, unsigned flags),
     value(&c, WRITE_VALUE, s, PER_THREAD, address, what, flags, 4))
BOTH(cuStreamWriteValue64_v2, _ptsz, (void *s, u64 address, u64 what, unsigned flags),
     value(&c, WRITE_VALUE, s, PER_THREAD, address, what, flags, 8))
BOTH(cuLaunchHostFunc, _ptsz, (void *s, void (*function)(void *), void *argument),
     host(&c, s, PER_THREAD, function, argument))
API(cuEventCreate, (void **to, unsigned flags), (void)flags, create_event(to))
API(cuEventDestroy, (void *event), destroy_event(event))
API(cuEventDestroy_v2, (void *event), destroy_event(event))
BOTH(cuEventRecord, _ptsz, (void *event, void *s), record(&c, event, s, PER_THREAD))
BOTH(cuEventRecordWithFlags, _ptsz, (void *event, void *s, unsigned flags), (void)flags,
     record(&c, event, s, PER_THREAD))
API(cuEventSynchronize, (void *event), look_at_event(event, true))
API(cuEventQuery, (void *event), look_at_event(event, false))
API(cuEventElapsedTime, (float *to, void *from, void *end), elapsed(to, from, end))
