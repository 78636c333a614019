/* What this process holds, as a hash table. */
#include "cap.h"

#include <stdlib.h>

enum { BUCKETS = 1 << 14 };

struct node {
    struct node *next;
    struct held held;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct node *buckets[BUCKETS];

/* The pointer to its node, or the NULL pointer where it would be inserted. */
static struct node **find(uint32_t kind, uint64_t key)
{
    uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);
    struct node **at = &buckets[(mixed >> 20) % BUCKETS];
    while (*at && ((*at)->held.kind != kind || (*at)->held.key != key))
        at = &(*at)->next;
    return at;
}

static void take(struct node **at, struct held *what)
{
    struct node *node = *at;
    *what = node->held;
    *at = node->next;
    free(node);
}

bool held_put(struct held what, struct held *old)
{
    old->kind = KIND_NONE;
    pthread_mutex_lock(&guard);
    struct node **at = find(what.kind, what.key), *node = *at;
    if (node)
        *old = node->held;
    else if ((node = calloc(1, sizeof *node)) != NULL)
        *at = node;
    if (node)
        node->held = what;
    pthread_mutex_unlock(&guard);
    return node != NULL;
}

bool held_take(enum kind kind, uint64_t key, struct held *what)
{
    pthread_mutex_lock(&guard);
    struct node **at = find(kind, key);
    bool is_known = *at != NULL;
    if (is_known)
        take(at, what);
    pthread_mutex_unlock(&guard);
    return is_known;
}

bool held_add(enum kind kind, uint64_t key, int change, struct held *what)
{
    pthread_mutex_lock(&guard);
    struct node **at = find(kind, key);
    bool is_known = *at != NULL;
    if (is_known) {
        (*at)->held.count += (uint32_t)change;
        *what = (*at)->held;
        if (what->count == 0)
            take(at, what);
    }
    pthread_mutex_unlock(&guard);
    return is_known;
}

bool held_take_of(uint64_t context, size_t *from, struct held *what)
{
    bool is_found = false;
    pthread_mutex_lock(&guard);
    for (; !is_found && *from < BUCKETS; *from += !is_found)
        for (struct node **at = &buckets[*from]; !is_found && *at; at = is_found ? at : &(*at)->next)
            if ((*at)->held.kind == KIND_ADDRESS && (*at)->held.link == context) {
                take(at, what);
                is_found = true;
            }
    pthread_mutex_unlock(&guard);
    return is_found;
}
