/* What this process holds: a hash table with open addressing, which grows. */
#include "cap.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_SLOTS = 1024 };

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct held *slots; /* a free one has KIND_NONE */
static size_t slot_count;  /* a power of two, or 0 */
static size_t used;

static size_t home(uint32_t kind, uint64_t key)
{
    uint64_t mixed = (key ^ ((uint64_t)kind << 56)) * UINT64_C(0x9e3779b97f4a7c15);
    return (size_t)(mixed >> 20) & (slot_count - 1);
}

/* Its slot, or the free one where it would be. Not before there are slots. */
static struct held *find(uint32_t kind, uint64_t key)
{
    size_t slot = home(kind, key);
    while (slots[slot].kind != KIND_NONE && (slots[slot].kind != kind || slots[slot].key != key))
        slot = (slot + 1) & (slot_count - 1);
    return &slots[slot];
}

static struct held *find_known(uint32_t kind, uint64_t key)
{
    struct held *found = slot_count ? find(kind, key) : NULL;
    return found != NULL && found->kind != KIND_NONE ? found : NULL;
}

/* At most half of it is ever used: searches stay short, and always end. */
static bool has_room(void)
{
    if ((used + 1) * 2 <= slot_count)
        return true;
    size_t old_count = slot_count;
    size_t count = old_count == 0 ? FIRST_SLOTS : old_count * 2;
    int saved = errno;
    struct held *more = calloc(count, sizeof *more);
    errno = saved;
    if (more == NULL)
        return false;
    struct held *old = slots;
    slots = more;
    slot_count = count;
    for (size_t slot = 0; slot < old_count; slot++)
        if (old[slot].kind != KIND_NONE)
            *find(old[slot].kind, old[slot].key) = old[slot];
    free(old);
    return true;
}

/* Those behind it move up, so that no search ends too early. */
static void remove_slot(size_t hole)
{
    for (size_t next = (hole + 1) & (slot_count - 1); slots[next].kind != KIND_NONE; next = (next + 1) & (slot_count - 1)) {
        size_t from_home = (next - home(slots[next].kind, slots[next].key)) & (slot_count - 1);
        size_t from_hole = (next - hole) & (slot_count - 1);
        if (from_home >= from_hole) {
            slots[hole] = slots[next];
            hole = next;
        }
    }
    slots[hole].kind = KIND_NONE;
    used--;
}

bool held_put(struct held what, struct held *old)
{
    old->kind = KIND_NONE;
    pthread_mutex_lock(&guard);
    struct held *slot = find_known(what.kind, what.key);
    if (slot != NULL) {
        *old = *slot;
    } else if (has_room()) {
        slot = find(what.kind, what.key);
        used++;
    }
    if (slot != NULL)
        *slot = what;
    pthread_mutex_unlock(&guard);
    return slot != NULL;
}

bool held_take(enum kind kind, uint64_t key, struct held *what)
{
    pthread_mutex_lock(&guard);
    struct held *slot = find_known(kind, key);
    if (slot != NULL) {
        *what = *slot;
        remove_slot((size_t)(slot - slots));
    }
    pthread_mutex_unlock(&guard);
    return slot != NULL;
}

bool held_get(enum kind kind, uint64_t key, struct held *what)
{
    pthread_mutex_lock(&guard);
    struct held *slot = find_known(kind, key);
    if (slot != NULL)
        *what = *slot;
    pthread_mutex_unlock(&guard);
    return slot != NULL;
}

bool held_add(enum kind kind, uint64_t key, int change, struct held *what)
{
    pthread_mutex_lock(&guard);
    struct held *slot = find_known(kind, key);
    if (slot != NULL) {
        slot->count += (uint32_t)change;
        *what = *slot;
        if (slot->count == 0)
            remove_slot((size_t)(slot - slots));
    }
    pthread_mutex_unlock(&guard);
    return slot != NULL;
}

bool held_take_linked(enum kind kind, uint64_t link, size_t *from, struct held *what)
{
    bool found = false;
    pthread_mutex_lock(&guard);
    for (; !found && *from < slot_count; ++*from)
        if (slots[*from].kind == (uint32_t)kind && slots[*from].link == link) {
            *what = slots[*from];
            remove_slot(*from);
            found = true;
            --*from; /* another one may have moved to this place */
        }
    pthread_mutex_unlock(&guard);
    return found;
}

/* The child has none of it: a CUDA context does not outlive a fork. The table may be half changed, so it is left as it is. */
void held_after_fork(void)
{
    mutex_after_fork(&guard);
    slots = NULL;
    slot_count = used = 0;
}
