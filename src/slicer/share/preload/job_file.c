/* The job's file: found, checked and mapped when it is first asked for. */
#include "cap.h"
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[PATH_MAX];
static bool is_cap_asked_for; /* by the environment: what to go by where there is no file to ask */

static pthread_mutex_t attaching = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool is_looked_for;
static _Atomic(struct job_file *) mapped;
static const char *reason; /* why there is none; written before is_looked_for */
static int reason_errno;
static _Atomic bool is_said;

/* A child that is forked in the midst of attach() would inherit a descriptor or a mapping that it knows nothing of, and
 * keep its parent's row locked. So forks wait. */
static void before_fork(void)
{
    pthread_mutex_lock(&attaching);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&attaching);
}

/* The program may change its environment before it comes to use CUDA. */
__attribute__((constructor)) static void remember_environment(void)
{
    const char *file = getenv("SLICER_SHARE_FILE");
    const char *share = getenv("SLICER_SHARE");
    if (file == NULL || file[0] == '\0' || path[0] != '\0')
        return;
    is_cap_asked_for = share == NULL || strcmp(share, "lock") != 0;
    strcpy(path, strlen(file) < sizeof path ? file : "too long");
    pthread_atfork(before_fork, in_parent, job_after_fork);
}

static const char *wrong_file(const struct stat *status)
{
    if (!S_ISREG(status->st_mode) || status->st_uid != geteuid() || (status->st_mode & 07777) != 0600)
        return "the job's file is not a file of this user alone";
    if (status->st_nlink != 1)
        return status->st_nlink == 0 ? "the job of this environment has ended" : "the job's file has a second name";
    if (status->st_size != sizeof(struct job_file))
        return "the job's file has the wrong size: it was made by another version of slicer";
    return NULL;
}

static const char *wrong_text(const struct job_file *file)
{
    if (file->magic != JOB_FILE_MAGIC || file->version != JOB_FILE_VERSION || file->size != sizeof *file)
        return "the job's file was made by another version of slicer";
    if ((file->wants & ~(uint32_t)(WANTS_LOCK | WANTS_CAP)) != 0 || file->gpu_count < 1 ||
        file->gpu_count > JOB_MAX_GPUS || file->priority < -100 || file->priority > 100 ||
        atomic_load(&file->rows) > JOB_MAX_PROCESSES || memchr(file->job, '\0', JOB_ID_CHARS) == NULL)
        return "the job's file makes no sense";
    for (uint32_t gpu = 0; gpu < file->gpu_count; gpu++)
        if (memchr(file->gpus[gpu], '\0', JOB_UUID_CHARS) == NULL)
            return "the job's file makes no sense";
    return NULL;
}

/* Open what `path` names, if it is the job's file; else -1, and why. */
int job_open(const char **why, struct stat *status)
{
    *why = "the job's file cannot be opened";
    if (path[0] != '/') {
        *why = "SLICER_SHARE_FILE is no absolute path";
        errno = 0;
        return -1;
    }
    int descriptor = file_open(path, 0);
    if (descriptor < 0) {
        if (errno == ENOENT) {
            *why = "the job of this environment has ended";
            errno = 0;
        }
        return -1;
    }
    if (fstat(descriptor, status) != 0 || (*why = wrong_file(status)) != NULL) {
        errno = 0;
        close(descriptor);
        return -1;
    }
    return descriptor;
}

/* Map it, or say in `reason` why not. */
static struct job_file *attach(void)
{
    struct stat status;
    int descriptor = job_open(&reason, &status);
    if (descriptor < 0) {
        reason_errno = errno;
        return NULL;
    }
    struct job_file *file = MAP_FAILED;
    /* Blocks that slicer has not allocated are now: to touch one for which the disk is full would be a SIGBUS. */
    if (fallocate(descriptor, 0, 0, sizeof *file) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        reason = "there is no room for the job's file";
    else if ((file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0)) == MAP_FAILED)
        reason = "the job's file cannot be mapped";
    reason_errno = file == MAP_FAILED ? errno : 0;
    if (file != MAP_FAILED && (reason = wrong_text(file)) == NULL) {
        job_rows_attached(file, descriptor, &status);
        return file;
    }
    if (file != MAP_FAILED)
        munmap(file, sizeof *file);
    close(descriptor);
    return NULL;
}

const char *job_path(void)
{
    return path[0] == '/' ? path : NULL;
}

struct job_file *job_seen(void)
{
    if (atomic_load_explicit(&is_looked_for, memory_order_acquire))
        return atomic_load_explicit(&mapped, memory_order_acquire);
    int saved = errno;
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    pthread_mutex_lock(&attaching);
    if (!atomic_load(&is_looked_for)) {
        remember_environment(); /* where another library's constructor came before ours */
        if (path[0] != '\0')
            atomic_store(&mapped, attach());
        atomic_store_explicit(&is_looked_for, true, memory_order_release);
    }
    pthread_mutex_unlock(&attaching);
    pthread_setcancelstate(cancel, NULL);
    errno = saved;
    return atomic_load_explicit(&mapped, memory_order_acquire);
}

static void say_why_not(bool is_cap, const char *why, int error)
{
    if (atomic_exchange(&is_said, true))
        return;
    int saved = errno;
    char text[100] = "";
    char line[400];
    snprintf(line, sizeof line, "%s: %s%s%s",
             is_cap ? "CUDA cannot start here: the job's cap on GPU memory cannot be applied"
                    : "the GPU is used here without the job's lock",
             why, error == 0 ? "" : ": ", error == 0 ? "" : strerror_r(error, text, sizeof text));
    say(line);
    errno = saved;
}

struct job_file *job(void)
{
    struct job_file *file = job_seen();
    if (file != NULL)
        job_rows_take(file);
    else if (path[0] != '\0' && !atomic_load_explicit(&is_said, memory_order_relaxed))
        say_why_not(is_cap_asked_for, reason, reason_errno);
    return file;
}

bool job_limit(int gpu, uint64_t *limit)
{
    const struct job_file *said = job_said();
    if (said == NULL || (said->wants & WANTS_CAP) == 0 || gpu < 0 || gpu >= JOB_MAX_GPUS)
        return false;
    *limit = said->limit[gpu];
    return *limit != 0;
}

/* A cap that cannot be applied is an error. The lock is not: the program runs without. */
long on_init(void *real, long *a)
{
    if (job() == NULL)
        return path[0] != '\0' && is_cap_asked_for ? CUDA_ERROR_OPERATING_SYSTEM : call(real, a);
    if ((job_said()->wants & WANTS_CAP) != 0) {
        const char *why = NULL;
        if (job_row() < 0)
            why = "it has too many processes that use CUDA";
        else if (driver("cuDeviceGetUuid") == NULL)
            why = "the driver does not tell which GPU is which";
        if (why != NULL) {
            say_why_not(true, why, 0);
            return CUDA_ERROR_OPERATING_SYSTEM;
        }
    }
    return call(real, a);
}

/* Async-signal-safe: the parent may have had other threads. */
void job_after_fork(void)
{
    mutex_after_fork(&attaching);
    struct job_file *file = atomic_exchange(&mapped, NULL);
    atomic_store(&is_looked_for, false);
    job_rows_after_fork();
    job_gpu_after_fork();
    held_after_fork();
    pools_after_fork();
    if (file != NULL)
        munmap(file, sizeof *file);
}
