/* Commands of the client: contexts, streams, launches, captures. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

struct configuration {
    unsigned grid[3], block[3], shared_bytes;
    pointer stream;
    void *attributes;
    unsigned count;
};

static pointer stream_of(char **words, int count, int index)
{
    const char *word = index < count ? words[index] : "-";

    if (!strcmp(word, "-"))
        return NULL;
    if (!strcmp(word, "legacy") || !strcmp(word, "thread"))
        return (pointer)(uintptr_t)(*word == 'l' ? 1 : 2);
    return things.streams[atoi(word) % 64];
}

static int load_kernels(void)
{
    pointer module;
    int code = 0;

    if (!things.spin) {
        code = cuda.cuModuleLoadData(&module, "image");
        code = code ? code : cuda.cuModuleGetFunction(&things.meet, module, "meet");
        code = code ? code : cuda.cuModuleGetFunction(&things.spin, module, "spin");
    }
    return code;
}

int launch(long us, pointer stream)
{
    u64 ns = (u64)us * 1000;
    void *arguments[] = {&ns};
    int code = load_kernels();

    return code ? code : cuda.cuLaunchKernel(things.spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static int init(char **words, int count, struct answer *to)
{
    (void)words, (void)count, (void)to;
    return cuda.cuInit(0);
}

static int devices(char **words, int count, struct answer *to)
{
    unsigned char uuid[16];
    int number = 0, code = cuda.cuDeviceGetCount(&number);

    (void)words, (void)count;
    say(to, " %d", number);
    for (int i = 0; i < number && !code; i++) {
        code = cuda.cuDeviceGetUuid(uuid, i);
        say(to, " %02x", uuid[0]);
    }
    return code;
}

static int context(char **words, int count, struct answer *to)
{
    int index = things.context_count++ % 16;

    say(to, " %d", index);
    return cuda.cuCtxCreate(&things.contexts[index], 0, count ? atoi(words[0]) : 0);
}

static int use(char **words, int count, struct answer *to)
{
    (void)count, (void)to;
    return cuda.cuCtxSetCurrent(things.contexts[atoi(words[0]) % 16]);
}

static int destroy(char **words, int count, struct answer *to)
{
    (void)count, (void)to;
    return cuda.cuCtxDestroy(things.contexts[atoi(words[0]) % 16]);
}

static int primary(char **words, int count, struct answer *to)
{
    pointer context;
    int code = cuda.cuDevicePrimaryCtxRetain(&context, count ? atoi(words[0]) : 0);

    (void)to;
    return code ? code : cuda.cuCtxSetCurrent(context);
}

static int unprimary(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuDevicePrimaryCtxRelease(count ? atoi(words[0]) : 0);
}

static int reset(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuDevicePrimaryCtxReset(count ? atoi(words[0]) : 0);
}

static int stream(char **words, int count, struct answer *to)
{
    int index = things.stream_count++ % 64;

    say(to, " %d", index);
    return cuda.cuStreamCreate(&things.streams[index], count && !strcmp(words[0], "nonblocking"));
}

static int destroy_stream(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuStreamDestroy(stream_of(words, count, 0));
}

/* "spin US [STREAM [COUNT]]" */
static int spin(char **words, int count, struct answer *to)
{
    int code = 0;

    (void)to;
    for (int i = count > 2 ? atoi(words[2]) : 1; i && !code; i--)
        code = launch(atol(words[0]), stream_of(words, count, 1));
    return code;
}

/* "work US COUNT EVERY": launches, and waits for them after each EVERY and at the end */
static int work(char **words, int count, struct answer *to)
{
    long every = count > 2 ? atol(words[2]) : 0;
    int code = 0;

    (void)to;
    for (long i = 1; i <= atol(words[1]) && !code; i++) {
        code = launch(atol(words[0]), NULL);
        if (!code && every && i % every == 0)
            code = cuda.cuCtxSynchronize();
    }
    return code ? code : cuda.cuCtxSynchronize();
}

static int launch_ex(char **words, int count, struct answer *to)
{
    struct configuration how = {.grid = {1, 1, 1}, .block = {1, 1, 1}, .stream = stream_of(words, count, 1)};
    u64 ns = strtoull(words[0], NULL, 10) * 1000;
    void *arguments[] = {&ns};
    int code = load_kernels();

    (void)to;
    return code ? code : cuda.cuLaunchKernelEx(&how, things.spin, arguments, NULL);
}

static int launch_cooperative(char **words, int count, struct answer *to)
{
    u64 ns = strtoull(words[0], NULL, 10) * 1000;
    void *arguments[] = {&ns};
    int code = load_kernels();

    (void)to;
    return code ? code
                : cuda.cuLaunchCooperativeKernel(things.spin, 1, 1, 1, 1, 1, 1, 0, stream_of(words, count, 1),
                                                 arguments);
}

/* "meet US FIRST PARTIES [COUNT]": kernels with the numbers from FIRST on, each of which ends once all
 * parties' have begun */
static int meet(char **words, int count, struct answer *to)
{
    u64 ns = strtoull(words[0], NULL, 10) * 1000, number = strtoull(words[1], NULL, 10),
        parties = strtoull(words[2], NULL, 10);
    void *arguments[] = {&ns, &number, &parties};
    int code = load_kernels();

    (void)to;
    for (int i = count > 3 ? atoi(words[3]) : 1; i && !code; i--, number++)
        code = cuda.cuLaunchKernel(things.meet, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
    return code;
}

static int sync(char **words, int count, struct answer *to)
{
    (void)to;
    return count ? cuda.cuStreamSynchronize(stream_of(words, count, 0)) : cuda.cuCtxSynchronize();
}

static int query(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuStreamQuery(stream_of(words, count, 0));
}

/* "record [STREAM]" makes an event */
static int record(char **words, int count, struct answer *to)
{
    int index = things.event_count++ % 64, code = cuda.cuEventCreate(&things.events[index], 0);

    say(to, " %d", index);
    return code ? code : cuda.cuEventRecord(things.events[index], stream_of(words, count, 0));
}

static int wait_event(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuStreamWaitEvent(stream_of(words, count, 1), things.events[atoi(words[0]) % 64], 0);
}

static int sync_event(char **words, int count, struct answer *to)
{
    (void)count, (void)to;
    return cuda.cuEventSynchronize(things.events[atoi(words[0]) % 64]);
}

/* "await [STREAM]": the stream goes on once "signal STREAM" has come to its end on another one */
static int await_flag(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuStreamWaitValue32(stream_of(words, count, 0), (u64)(uintptr_t)&things.flag, 1, 0);
}

static int signal_flag(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuStreamWriteValue32(stream_of(words, count, 0), (u64)(uintptr_t)&things.flag, 1, 0);
}

static int begin_capture(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuStreamBeginCapture(stream_of(words, count, 0), count > 1 ? atoi(words[1]) : 0);
}

static int end_capture(char **words, int count, struct answer *to)
{
    int index = things.graph_count++ % 64, code;
    pointer graph = NULL;

    code = cuda.cuStreamEndCapture(stream_of(words, count, 0), &graph);
    say(to, " %d", index);
    return code ? code : cuda.cuGraphInstantiateWithFlags(&things.graphs[index], graph, 0);
}

static int graph(char **words, int count, struct answer *to)
{
    (void)to;
    return cuda.cuGraphLaunch(things.graphs[atoi(words[0]) % 64], stream_of(words, count, 1));
}

/* "copy BYTES [STREAM]": there with the stream's call, back with the blocking one; the bytes are compared */
static int copy(char **words, int count, struct answer *to)
{
    size_t bytes = strtoull(words[0], NULL, 10);
    unsigned char *out = malloc(bytes), *back = calloc(1, bytes);
    u64 at = 0;
    int code = cuda.cuMemAlloc(&at, bytes);

    for (size_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(i * 31 + 7);
    code = code ? code : cuda.cuMemcpyHtoDAsync(at, out, bytes, stream_of(words, count, 1));
    code = code ? code : cuda.cuStreamSynchronize(stream_of(words, count, 1));
    code = code ? code : cuda.cuMemcpyDtoH(back, at, bytes);
    say(to, " %s", code || memcmp(out, back, bytes) ? "differs" : "same");
    code = code ? code : cuda.cuMemsetD8Async(at, 5, bytes, stream_of(words, count, 1));
    code = code ? code : cuda.cuMemcpyDtoH(back, at, bytes);
    say(to, " %d", back[bytes - 1]);
    cuda.cuMemFree(at);
    free(out);
    free(back);
    return code;
}

/* "lookup NAME VERSION FLAGS": what cuGetProcAddress_v2 says; "-" is the empty name */
static int lookup(char **words, int count, struct answer *to)
{
    void *found = (void *)-1;
    int status = -1, code;

    (void)count;
    code = cuda.cuGetProcAddress_v2(strcmp(words[0], "-") ? words[0] : "", &found, atoi(words[1]),
                                    strtoull(words[2], NULL, 10), &status);
    say(to, " %d %#lx", status, (unsigned long)(uintptr_t)found);
    return code;
}

/* "reopen": closes the driver's library and finds all functions again */
static int reopen(char **words, int count, struct answer *to)
{
    (void)words, (void)count, (void)to;
    return dlclose(cuda.library) ? -1 : find_driver("dlsym");
}

/* "relookup [TIMES]": asks for all functions again, in all versions */
static int relookup(char **words, int count, struct answer *to)
{
    (void)to;
    for (int i = count ? atoi(words[0]) : 1; i; i--)
        if (ask_as_cudart())
            return -1;
    return 0;
}

const struct command commands[] = {
    {"init", init},
    {"devices", devices},
    {"context", context},
    {"use", use},
    {"destroy", destroy},
    {"primary", primary},
    {"unprimary", unprimary},
    {"reset", reset},
    {"stream", stream},
    {"unstream", destroy_stream},
    {"spin", spin},
    {"work", work},
    {"ex", launch_ex},
    {"cooperative", launch_cooperative},
    {"meet", meet},
    {"sync", sync},
    {"query", query},
    {"record", record},
    {"wait", wait_event},
    {"syncevent", sync_event},
    {"await", await_flag},
    {"signal", signal_flag},
    {"begin", begin_capture},
    {"end", end_capture},
    {"graph", graph},
    {"copy", copy},
    {"lookup", lookup},
    {"reopen", reopen},
    {"relookup", relookup},
    {"alloc", allocate},
    {"free", release},
    {"info", tell_info},
    {"total", tell_total},
    {"churn", churn},
    {"vmm", vmm},
    {"keep", keep},
    {"ownpool", own_pool},
    {"nvml", tell_nvml},
    {NULL, NULL},
};
