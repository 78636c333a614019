/* A libcuda.so.1 without a GPU, for tests of what is put between a program and the driver. See README.md. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "machine.h"

typedef int64_t i64;
typedef uint64_t u64;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908
};

enum {
    MAX_GPUS = MACHINE_GPUS,
    DEPTH = MACHINE_DEPTH,
    ROWS = MACHINE_ROWS,
    MEETINGS = MACHINE_MEETINGS,
    NEST = 32
};
#define MIB (UINT64_C(1) << 20)
#define UNKNOWN INT64_MAX /* an end that cannot be told yet */

/* -- one call of the API (call.c) -- */

struct call {
    const char *name;
    i64 began;
    i64 busy_from, busy_to; /* on the GPU; 0: nothing there, UNKNOWN: a line "busy" comes later */
    u64 op, bytes;
    void *stream;
    int gpu; /* the index in the state file; -1: none */
};

struct symbol {
    const char *name;
    void *function;
};

/* The head of each function: the failure that is ordered for it, or that of a driver that was not
 * initialised. */
int enter(struct call *c);
int leave(struct call *c, int code);
void note_busy(int gpu, void *stream, u64 op, i64 from, i64 to);
i64 now_ns(void);
u64 setting(const char *name, u64 otherwise);
int current_tid(void);

extern bool initialised;

#define EXPORTED __attribute__((visibility("default")))
#define LISTED(fn) \
    static const struct symbol listed_##fn __attribute__((section("symbols"), used)) = {#fn, (void *)fn};
/* API(name, (parameters), result): a function of the driver's, listed for cuGetProcAddress, and logged. */
#define API(fn, parameters, ...) \
    EXPORTED int fn parameters; \
    LISTED(fn) \
    int fn parameters \
    { \
        struct call c = {.name = #fn, .gpu = -1}; \
        int code = enter(&c); \
        return leave(&c, code ? code : (__VA_ARGS__)); \
    }
/* The same with its variant for the per-thread default stream: two functions. `PER_THREAD` tells which. */
#define BOTH(fn, suffix, parameters, ...) \
    API(fn, parameters, ({ \
            enum { PER_THREAD = 0 }; \
            (__VA_ARGS__); \
        })) \
    API(fn##suffix, parameters, ({ \
            enum { PER_THREAD = 1 }; \
            (__VA_ARGS__); \
        }))

/* -- GPUs (devices.c) -- */

struct gpu {
    char uuid[48];
    u64 bytes;
    int index;
};
extern struct gpu gpus[MAX_GPUS]; /* those that this process sees, by ordinal */
extern int gpu_count;

int read_gpus(void);
u64 foreign_bytes(int index); /* in use by what NVML alone knows of */

/* -- what processes share (shared.c) -- */

extern struct shared *shared;
extern int my_row;
extern bool serial; /* processes take turns on a GPU, as on a real one */

int open_shared(void);
void lock_shared(void);
void unlock_shared(void);
bool row_lives(int row);
int take_memory(int gpu, u64 bytes); /* by ordinal; OUT_OF_MEMORY where the card is full */
void give_memory(int gpu, u64 bytes);
u64 free_memory(int gpu);

/* -- processes in time slices (serial.c) -- */

u64 serial_submit(int gpu, i64 duration); /* a number for serial_look; blocks while the queue is full */
bool serial_look(int gpu, u64 number, i64 *from, i64 *to);

/* -- contexts (contexts.c) -- */

struct stream;
struct context {
    u64 magic;
    int ordinal, retained;
    bool alive, primary;
    unsigned flags;
    struct stream *streams;         /* the legacy default stream last */
    u64 blocking_pass, legacy_pass; /* of settle(): earlier work that is not settled */
};

struct context *current_context(void);
struct context *checked_context(void *handle);

/* -- streams and their work (engine.c) -- */

/* When something was or will be done. Shared by an event and what waits for it; never freed. */
struct moment {
    bool is_known;
    i64 at;
};

struct capture;
struct stream {
    u64 magic;
    struct context *context;
    struct stream *next;
    bool alive, blocking, legacy;
    int owner; /* of a per-thread default stream: the thread; else 0 */
    int priority, watchers;
    i64 end; /* of what is settled */
    u64 submitted, settled;
    i64 ends[DEPTH]; /* of the last DEPTH pieces of work */
    struct capture *capture;
};

enum kind { KERNEL, MEET, RECORD, WAIT, WAIT_VALUE, WRITE_VALUE, HOST };

struct work {
    enum kind kind;
    i64 duration;
    u64 meeting, parties;   /* MEET */
    struct moment *moment;  /* RECORD, WAIT */
    volatile void *address; /* WAIT_VALUE, WRITE_VALUE */
    u64 value;
    unsigned flags, bytes;
    void (*function)(void *); /* HOST */
    void *argument;
};

extern pthread_mutex_t lock; /* over all of this process's streams, contexts and memory */

struct stream *new_stream(struct context *context, bool blocking, bool legacy, int owner);
struct stream *resolve_stream(void *handle, int per_thread, int *code);
/* Puts work into a stream, or into the graph that it captures. Blocks while the stream is full. */
int submit(struct call *c, struct stream *s, const struct work *w);
/* All that is in a stream now, or in all of a context's: */
void wait_for_stream(struct stream *s);
void wait_for_context(struct context *context);
bool is_stream_done(struct stream *s);
bool has_come(struct moment *moment);
void wait_for_moment(struct moment *moment);
void forget_streams(struct context *context); /* with `lock` */

/* -- capture (capture.c) -- */

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

struct graph {
    u64 magic;
    i64 duration;
    int nodes, copies;
};
struct capture {
    struct graph *graph;
    struct stream *origin;
    int mode, tid;
    bool is_invalid;
    struct capture *next;
};
struct event {
    u64 magic;
    struct moment *moment;
    struct capture *capture;
};

/* The error of a call that a capture forbids in this thread (an allocation, a blocking copy), or 0. */
int unsafe_call(void);
/* The error of syncing or asking what takes part in a capture. It breaks the capture. */
int sync_of_capture(struct stream *s);
int sync_of_captures(struct context *context);
int add_to_graph(struct stream *s, const struct work *w);
int legacy_while_capturing(struct stream *s);

/* -- memory (memory.c) -- */

bool is_device_memory(const void *address, u64 bytes);
void forget_memory(struct context *context); /* with `lock` */

/* -- pools (pools.c) -- */

struct pool;
struct pool *default_pool(int ordinal); /* NULL: there is no such GPU */
int ordinal_of_pool(const struct pool *pool);
int take_from_pool(struct pool *pool, u64 bytes); /* with `lock`, as the next */
void give_to_pool(struct pool *pool, u64 bytes);
void observe_frees(void); /* at a sync, without `lock` */

#endif
