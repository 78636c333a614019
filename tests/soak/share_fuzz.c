/* Job files and arenas that say anything, thousands a second, given to the library that reads them. See share_fuzz.py.
 *
 *   share-fuzz SEED ROUNDS    with SLICER_SHARE_FILE: a file that it may write
 *
 * Prints each round's seed to where it can be read after a crash, and at the end how many files were accepted. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cap.h"
#include "arena.h"

enum { OPERATIONS = 24, SECONDS_A_ROUND = 20, HEAD = 2048 };

static uint64_t state;

static uint64_t random_number(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static uint64_t below(uint64_t end)
{
    return random_number() % end;
}

static uint64_t odd_number(void)
{
    static const uint64_t odd[] = {0, 1, 2, 15, 16, 17, 255, 256, 257, 511, 512, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX,
                                   UINT64_C(1) << 63, UINT64_C(1) << 30};
    return below(3) == 0 ? random_number() : odd[below(sizeof odd / sizeof *odd)];
}

/* A few fields, or a stretch of it, or all. */
static void spoil(unsigned char *bytes, size_t size)
{
    uint64_t value;
    for (uint64_t times = below(8); times > 0; times--) {
        size_t width = (size_t)1 << below(4);
        value = odd_number();
        memcpy(bytes + below((below(2) == 0 ? HEAD : size) / width) * width, &value, width);
    }
    if (below(8) == 0)
        for (size_t from = below(size), left = below(size - from); left > 0; left--, from++)
            bytes[from] = (unsigned char)random_number();
}

static void good_job(struct job_file *file)
{
    memset(file, 0, sizeof *file);
    file->magic = JOB_FILE_MAGIC;
    file->version = JOB_FILE_VERSION;
    file->size = sizeof *file;
    strcpy(file->job, "0123456789ab");
    file->wants = WANTS_LOCK | WANTS_CAP;
    file->gpu_count = 2;
    for (int gpu = 0; gpu < 2; gpu++) {
        snprintf(file->gpus[gpu], JOB_UUID_CHARS, "GPU-%08d-0000-0000-0000-000000000000", gpu);
        file->limit[gpu] = UINT64_C(1) << 30;
    }
}

static void use_job(int descriptor)
{
    uint64_t charged[JOB_MAX_GPUS] = {0};
    uint64_t limit;
    for (int turn = 0; turn < OPERATIONS; turn++) {
        int gpu = (int)below(JOB_MAX_GPUS + 4) - 2;
        uint64_t bytes = below(4) == 0 ? odd_number() : below(UINT64_C(1) << 28);
        uint64_t value = odd_number();
        off_t place = (off_t)(below((below(2) == 0 ? HEAD : sizeof(struct job_file)) / 4 - 1) * 4);
        switch (below(6)) {
        case 0:
            if (pwrite(descriptor, &value, sizeof value, place) < 0)
                abort();
            break;
        case 1:
            quota_used(gpu);
            break;
        case 2:
            job_limit(gpu, &limit);
            break;
        case 3:
            if (gpu >= 0 && gpu < JOB_MAX_GPUS && charged[gpu] != 0) {
                quota_credit(gpu, charged[gpu]);
                charged[gpu] = 0;
            }
            break;
        default:
            if (quota_charge(gpu, bytes) == CHARGED)
                charged[gpu] += bytes;
        }
    }
}

/* One file, attached to as by a process that has just begun. Whether it was accepted. */
static bool try_job(const char *path)
{
    static struct job_file file;
    int descriptor = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    good_job(&file);
    spoil((unsigned char *)&file, sizeof file);
    size_t size = below(16) == 0 ? below(sizeof file * 2) : sizeof file;
    if (descriptor < 0 || ftruncate(descriptor, (off_t)size) < 0 ||
        pwrite(descriptor, &file, size < sizeof file ? size : sizeof file, 0) < 0)
        abort();
    job_after_fork();
    struct job_file *mapped = job_seen();
    if (mapped != NULL) {
        job_row();
        use_job(descriptor);
    }
    job_after_fork();
    close(descriptor);
    return mapped != NULL;
}

static void try_arena(void)
{
    static struct arena arena;
    struct rings rings = {{0}, {0}};
    uint64_t now = odd_number();
    memset(&arena, 0, sizeof arena);
    spoil((unsigned char *)&arena, sizeof arena);
    for (int turn = 0; turn < OPERATIONS; turn++) {
        unsigned job = (unsigned)below(ARENA_JOBS);
        now += below(UINT64_C(1) << 30);
        switch (below(5)) {
        case 0:
            turns_request(&arena, &arena.jobs[job], now);
            break;
        case 1:
            turns_ask_back(&arena, job, now, &rings);
            break;
        case 2:
            spoil((unsigned char *)&arena, sizeof arena);
            break;
        default:
            turns_settle(&arena, now, &rings);
        }
    }
}

int main(int count, char **words)
{
    const char *path = getenv("SLICER_SHARE_FILE");
    if (count != 3 || path == NULL)
        return 2;
    uint64_t seed = strtoull(words[1], NULL, 10);
    uint64_t rounds = strtoull(words[2], NULL, 10);
    uint64_t accepted = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        state = (seed + round) * UINT64_C(0x9e3779b97f4a7c15) | 1;
        char line[32];
        int length = snprintf(line, sizeof line, "%020llu\n", (unsigned long long)(seed + round));
        if (pwrite(STDOUT_FILENO, line, (size_t)length, 0) < 0)
            return 2;
        alarm(SECONDS_A_ROUND);
        accepted += try_job(path);
        try_arena();
    }
    char line[32];
    int length = snprintf(line, sizeof line, "%020llu\n", (unsigned long long)accepted);
    return pwrite(STDOUT_FILENO, line, (size_t)length, 0) == length ? 0 : 2;
}
