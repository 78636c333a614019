#ifndef CLIENT_H
#define CLIENT_H

#include <stdatomic.h>

#include "driver.h"

#define EXPORTED __attribute__((visibility("default")))

struct answer {
    int code;
    char text[240];
};
struct command {
    const char *name;
    int (*run)(char **words, int count, struct answer *to);
};

enum kind { LINEAR, PITCH, MANAGED, CREATE, HOST, NUMA, ASYNC, POOL, ARRAY, ARRAY3D, MIPMAP, DOMAIN };

enum { MANY = 4096 };
struct objects {
    pointer streams[64], contexts[16], events[64], graphs[64], spin, meet;
    struct {
        enum kind kind;
        u64 at;
    } memory[MANY];
    _Atomic int stream_count, context_count, event_count, graph_count, memory_count;
    uint32_t flag;
};
extern struct objects things;

extern const struct command commands[]; /* ended by one without a name */
extern const struct command process_commands[];

void say(struct answer *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
void run(char *line, struct answer *to);
int launch(long us, pointer stream);
int allocate(char **words, int count, struct answer *to);
int release(char **words, int count, struct answer *to);
int tell_info(char **words, int count, struct answer *to);
int tell_total(char **words, int count, struct answer *to);
int churn(char **words, int count, struct answer *to);
int vmm(char **words, int count, struct answer *to);
int keep(char **words, int count, struct answer *to);
int own_pool(char **words, int count, struct answer *to);
int tell_nvml(char **words, int count, struct answer *to);

#endif
