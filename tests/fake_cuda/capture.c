/* Graphs and their capture, with the errors that the driver answers to calls that a capture forbids. */
#include <stdlib.h>

#include "fake.h"

#define GRAPH_MAGIC UINT64_C(0x6772617068)

static struct capture *captures; /* with `lock` */
static __thread int thread_mode = MODE_GLOBAL;

int unsafe_call(void)
{
    int tid = current_tid(), code = SUCCESS;

    for (struct capture *one = captures; one; one = one->next)
        if (thread_mode != MODE_RELAXED && one->mode != MODE_RELAXED &&
            (one->tid == tid || (one->mode == MODE_GLOBAL && thread_mode == MODE_GLOBAL))) {
            one->is_invalid = true;
            code = CAPTURE_UNSUPPORTED;
        }
    return code;
}

int sync_of_capture(struct stream *s)
{
    if (s->capture) {
        s->capture->is_invalid = true;
        return CAPTURE_UNSUPPORTED;
    }
    return s->legacy && legacy_while_capturing(s) ? CAPTURE_IMPLICIT : unsafe_call();
}

int sync_of_captures(struct context *context)
{
    int code = SUCCESS;

    for (struct capture *one = captures; one; one = one->next)
        if (one->origin->context == context) {
            one->is_invalid = true;
            code = CAPTURE_UNSUPPORTED;
        }
    return code ? code : unsafe_call();
}

int legacy_while_capturing(struct stream *s)
{
    int code = SUCCESS;

    for (struct capture *one = captures; s->legacy && one; one = one->next)
        if (one->origin->blocking && one->origin->context == s->context) {
            one->is_invalid = true;
            code = CAPTURE_IMPLICIT;
        }
    return code;
}

int add_to_graph(struct stream *s, const struct work *w)
{
    if (s->capture->is_invalid)
        return CAPTURE_INVALIDATED;
    s->capture->graph->duration += w->kind <= MEET ? w->duration : 0;
    s->capture->graph->nodes++;
    return SUCCESS;
}

static struct graph *new_graph(void)
{
    struct graph *graph = calloc(1, sizeof *graph);

    graph->magic = GRAPH_MAGIC;
    return graph;
}

static struct graph *checked_graph(void *handle)
{
    struct graph *graph = handle;
    return graph && graph->magic == GRAPH_MAGIC ? graph : NULL;
}

static int begin(void *handle, int per_thread, int mode, struct graph *graph)
{
    int code;
    struct stream *s = resolve_stream(handle, per_thread, &code);
    struct capture *capture;

    if (code != SUCCESS)
        return code;
    if (s->legacy)
        return CAPTURE_UNSUPPORTED;
    if (s->capture || mode < MODE_GLOBAL || mode > MODE_RELAXED)
        return s->capture ? ILLEGAL_STATE : INVALID_VALUE;
    capture = calloc(1, sizeof *capture);
    pthread_mutex_lock(&lock);
    *capture = (struct capture){.graph = graph ? graph : new_graph(),
                                .origin = s,
                                .mode = mode,
                                .tid = current_tid(),
                                .next = captures};
    captures = capture;
    s->capture = capture;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

static void take_out(struct capture *capture)
{
    struct capture **at = &captures;

    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    for (struct stream *s = capture->origin->context->streams; s; s = s->next)
        s->capture = s->capture == capture ? NULL : s->capture;
}

static int end(void *handle, int per_thread, void **to)
{
    int code;
    struct stream *s = resolve_stream(handle, per_thread, &code);
    struct capture *capture;

    if (code != SUCCESS)
        return code;
    capture = s->capture;
    if (!capture)
        return ILLEGAL_STATE;
    if (capture->origin != s)
        return CAPTURE_UNMATCHED;
    if (capture->mode != MODE_RELAXED && capture->tid != current_tid())
        return CAPTURE_WRONG_THREAD;
    pthread_mutex_lock(&lock);
    take_out(capture);
    pthread_mutex_unlock(&lock);
    *to = capture->is_invalid ? NULL : capture->graph;
    code = capture->is_invalid ? CAPTURE_INVALIDATED : SUCCESS;
    return code;
}

static int status(void *handle, int per_thread, int *to, u64 *id)
{
    int code;
    struct stream *s = resolve_stream(handle, per_thread, &code);

    if (code != SUCCESS)
        return code;
    *to = !s->capture ? 0 : s->capture->is_invalid ? 2 : 1;
    if (id)
        *id = (u64)(uintptr_t)s->capture;
    return SUCCESS;
}

static int instantiate(void **to, void *handle)
{
    struct graph *graph = checked_graph(handle), *copy;

    if (!graph)
        return INVALID_VALUE;
    copy = new_graph();
    copy->duration = graph->duration;
    copy->nodes = graph->nodes;
    *to = copy;
    return SUCCESS;
}

static int launch(struct call *c, void *handle, void *stream, int per_thread, bool runs)
{
    struct graph *graph = checked_graph(handle);
    struct work w = {.kind = KERNEL, .duration = graph && runs ? graph->duration : 0};
    int code;
    struct stream *s = resolve_stream(stream, per_thread, &code);

    if (!graph || code != SUCCESS)
        return graph ? code : INVALID_VALUE;
    return runs ? submit(c, s, &w) : SUCCESS;
}

static int destroy(void *handle)
{
    struct graph *graph = checked_graph(handle);

    if (!graph)
        return INVALID_VALUE;
    graph->magic = 0;
    free(graph);
    return SUCCESS;
}

static int nodes(void *handle, size_t *to)
{
    struct graph *graph = checked_graph(handle);

    if (graph)
        *to = (size_t)graph->nodes;
    return graph ? SUCCESS : INVALID_VALUE;
}

static int exchange(int *mode)
{
    int before = thread_mode;

    if (*mode < MODE_GLOBAL || *mode > MODE_RELAXED)
        return INVALID_VALUE;
    thread_mode = *mode;
    *mode = before;
    return SUCCESS;
}

BOTH(cuStreamBeginCapture, _ptsz, (void *s), begin(s, PER_THREAD, MODE_GLOBAL, NULL))
BOTH(cuStreamBeginCapture_v2, _ptsz, (void *s, int mode), begin(s, PER_THREAD, mode, NULL))
BOTH(cuStreamBeginCaptureToGraph, _ptsz,
     (void *s, void *graph, void *nodes, void *data, size_t count, int mode), (void)nodes, (void)data,
     (void)count, checked_graph(graph) ? begin(s, PER_THREAD, mode, graph) : INVALID_VALUE)
BOTH(cuStreamEndCapture, _ptsz, (void *s, void **graph), end(s, PER_THREAD, graph))
BOTH(cuStreamIsCapturing, _ptsz, (void *s, int *to), status(s, PER_THREAD, to, NULL))
BOTH(cuStreamGetCaptureInfo, _ptsz, (void *s, int *to, u64 *id), status(s, PER_THREAD, to, id))
BOTH(cuStreamGetCaptureInfo_v2, _ptsz, (void *s, int *to, u64 *id, void **graph, void **nodes, size_t *count),
     (void)graph, (void)nodes, (void)count, status(s, PER_THREAD, to, id))
API(cuThreadExchangeStreamCaptureMode, (int *mode), exchange(mode))
API(cuGraphCreate, (void **to, unsigned flags), (void)flags, *to = new_graph(), SUCCESS)
API(cuGraphDestroy, (void *graph), destroy(graph))
API(cuGraphGetNodes, (void *graph, void **to, size_t *count), (void)to, nodes(graph, count))
API(cuGraphInstantiate, (void **to, void *graph, void **node, char *log, size_t size), (void)node, (void)log,
    (void)size, instantiate(to, graph))
API(cuGraphInstantiate_v2, (void **to, void *graph, void **node, char *log, size_t size), (void)node,
    (void)log, (void)size, instantiate(to, graph))
API(cuGraphInstantiateWithFlags, (void **to, void *graph, u64 flags), (void)flags, instantiate(to, graph))
BOTH(cuGraphInstantiateWithParams, _ptsz, (void **to, void *graph, void *parameters), (void)parameters,
     instantiate(to, graph))
API(cuGraphExecDestroy, (void *graph), destroy(graph))
BOTH(cuGraphLaunch, _ptsz, (void *graph, void *s), launch(&c, graph, s, PER_THREAD, true))
BOTH(cuGraphUpload, _ptsz, (void *graph, void *s), launch(&c, graph, s, PER_THREAD, false))
