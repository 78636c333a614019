/* The job's file: found, checked and mapped when it is first needed; this process's row, and the file's lock. */
#include "cap.h"
#include "file.h"
#include "gate.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ROW_NONE = -1, ROW_NOT_TRIED = -2, PATIENCE_MS = 500 };

_Atomic bool share_is_off;

static char path[PATH_MAX];
static bool is_cap_asked_for; /* in the environment, which decides if there is no file */
static struct file shared = FILE_OF("the job's file", PATIENCE_MS, struct job_file);
static struct job_file said; /* the file up to its processes, as it was when checked */
static _Atomic bool is_looked_for;
static _Atomic(struct job_file *) mapped;
static _Atomic bool is_said;
static _Atomic int row = ROW_NOT_TRIED;

/* If the parent has begun to use CUDA, CUDA does not work in the child, so all calls pass there. */
void job_after_fork(void)
{
    if (atomic_load(&row) != ROW_NOT_TRIED)
        atomic_store(&share_is_off, true);
    file_in_child(&arena_file);
    file_in_child(&shared);
    atomic_store(&mapped, NULL);
    atomic_store(&is_looked_for, false);
    atomic_store(&row, ROW_NOT_TRIED);
}

/* The program may change its environment before it uses CUDA. */
__attribute__((constructor)) static void remember_environment(void)
{
    const char *file = getenv("SLICER_SHARE_FILE");
    const char *share = getenv("SLICER_SHARE");
    if (file == NULL || file[0] == '\0' || path[0] != '\0')
        return;
    is_cap_asked_for = share == NULL || strcmp(share, "lock") != 0;
    strcpy(path, strlen(file) < sizeof path ? file : "too long");
    pthread_atfork(NULL, NULL, job_after_fork);
}

static bool makes_sense(const struct job_file *file)
{
    if ((file->wants & ~(uint32_t)(WANTS_LOCK | WANTS_CAP)) != 0 || file->gpu_count < 1 ||
        file->gpu_count > JOB_MAX_GPUS || file->priority < -100 || file->priority > 100 ||
        atomic_load(&file->rows) > JOB_MAX_PROCESSES || memchr(file->job, '\0', JOB_ID_CHARS) == NULL)
        return false;
    for (uint32_t gpu = 0; gpu < file->gpu_count; gpu++)
        if (memchr(file->gpus[gpu], '\0', JOB_UUID_CHARS) == NULL)
            return false;
    return true;
}

static bool attach(void)
{
    if (path[0] != '/')
        return file_fail(&shared, "has no absolute path in SLICER_SHARE_FILE", 0);
    if (!file_open(&shared, path, 0))
        return errno == ENOENT ? file_fail(&shared, "is gone: the job of this environment has ended", 0) : false;
    if (!file_is_right(&shared) || !file_map(&shared))
        return false;
    const struct job_file *file = shared.mapping;
    if (file->magic != JOB_FILE_MAGIC || file->version != JOB_FILE_VERSION || file->size != sizeof *file)
        return file_fail(&shared, "was made by another version of slicer", 0);
    if (!makes_sense(file))
        return file_fail(&shared, "makes no sense", 0);
    memcpy(&said, file, offsetof(struct job_file, processes));
    return true;
}

const char *job_path(void)
{
    return path[0] == '/' ? path : NULL;
}

struct job_file *job_seen(void)
{
    if (atomic_load_explicit(&is_looked_for, memory_order_acquire))
        return atomic_load_explicit(&mapped, memory_order_acquire);
    pthread_mutex_lock(&shared.threads);
    if (!atomic_load(&is_looked_for)) {
        remember_environment(); /* another library's constructor may run before ours */
        if (path[0] != '\0' && attach())
            atomic_store(&mapped, (struct job_file *)shared.mapping);
        else
            file_close(&shared);
        atomic_store_explicit(&is_looked_for, true, memory_order_release);
    }
    pthread_mutex_unlock(&shared.threads);
    return atomic_load_explicit(&mapped, memory_order_acquire);
}

const struct job_file *job_said(void)
{
    return job_seen() != NULL ? &said : NULL;
}

bool job_lock(void)
{
    struct job_file *file = job_seen();
    pthread_mutex_lock(&shared.threads);
    return file != NULL && file_lock(&shared);
}

void job_unlock(bool locked)
{
    if (locked)
        file_unlock(&shared);
    pthread_mutex_unlock(&shared.threads);
}

bool job_row_is_live(unsigned other)
{
    return file_is_taken(&shared, other);
}

/* Take the first row whose byte is free. */
static int take_row(struct job_file *file)
{
    for (unsigned taken = 0; taken < JOB_MAX_PROCESSES; taken++) {
        if (!file_take(&shared, taken))
            continue;
        struct job_process *mine = &file->processes[taken];
        for (int gpu = 0; gpu < JOB_MAX_GPUS; gpu++)
            atomic_store(&mine->charged[gpu], 0);
        atomic_store(&mine->pid, (int32_t)getpid());
        uint32_t rows = atomic_load(&file->rows);
        while (rows < taken + 1 && !atomic_compare_exchange_weak(&file->rows, &rows, taken + 1))
            continue;
        return (int)taken;
    }
    return ROW_NONE;
}

static void take_row_once(struct job_file *file)
{
    if (atomic_load_explicit(&row, memory_order_acquire) != ROW_NOT_TRIED)
        return;
    bool locked = job_lock();
    bool is_first = atomic_load(&row) == ROW_NOT_TRIED;
    if (is_first)
        atomic_store_explicit(&row, take_row(file), memory_order_release);
    int taken = atomic_load(&row);
    job_unlock(locked);
    if (is_first && taken < 0 && (file->wants & WANTS_CAP) != 0)
        atomic_fetch_or(&file->troubles, TROUBLE_NO_ROW); /* cuInit reports it, and fails */
    else if (is_first && taken < 0)
        trouble(TROUBLE_NO_ROW, "this job has too many processes that use CUDA: this one is not counted");
}

int job_row_now(void)
{
    int now = atomic_load_explicit(&row, memory_order_acquire);
    return now < 0 ? ROW_NONE : now;
}

int job_row(void)
{
    struct job_file *file = job_seen();
    if (file == NULL)
        return ROW_NONE;
    take_row_once(file);
    return job_row_now();
}

static void say_why_not(bool is_cap, const char *why)
{
    char line[400];
    if (atomic_exchange(&is_said, true))
        return;
    snprintf(line, sizeof line, "%s: %s", is_cap ? "CUDA cannot start here: the job's cap on GPU memory cannot be applied"
                                                 : "the GPU is used here without the job's lock", why);
    say(line);
}

struct job_file *job(void)
{
    struct job_file *file = job_seen();
    if (file != NULL)
        take_row_once(file);
    else if (path[0] != '\0' && !atomic_load_explicit(&is_said, memory_order_relaxed))
        say_why_not(is_cap_asked_for, shared.why);
    return file;
}

bool job_limit(int gpu, uint64_t *limit)
{
    const struct job_file *text = job_said();
    if (text == NULL || (text->wants & WANTS_CAP) == 0 || gpu < 0 || gpu >= JOB_MAX_GPUS)
        return false;
    *limit = text->limit[gpu];
    return *limit != 0;
}

/* A cap that cannot be applied is an error. For a lock the program runs without it. */
long on_init(void *real, long *a)
{
    if (job() == NULL)
        return path[0] != '\0' && is_cap_asked_for ? CUDA_ERROR_OPERATING_SYSTEM : call(real, a);
    const struct job_file *text = job_said();
    if (text != NULL && (text->wants & WANTS_CAP) != 0) {
        const char *why = NULL;
        if (job_row() < 0)
            why = "it has too many processes that use CUDA";
        else if (driver("cuDeviceGetUuid") == NULL)
            why = "the driver does not tell which GPU is which";
        if (why != NULL) {
            say_why_not(true, why);
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
    }
    return call(real, a);
}
