/* What the processes on one machine share: memory in use, time slices, and kernels that wait for each other.
 *
 * It lies in the file FAKE_CUDA_SHARED; without it, each process has a machine of its own. A process holds an
 * open-file-description lock on the byte of its row, so the memory of a killed one is free at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

#define MAGIC UINT64_C(0x61647563656b6166)
enum { WHOLE = ROWS, OPERATING_SYSTEM = 304, SPINS = 200, PATIENCE = 4000 };

struct shared *shared;
int my_row = -1;
bool serial;
static int fd = -1;
static pthread_mutex_t shared_lock = PTHREAD_MUTEX_INITIALIZER;

static int lock_byte(int command, int byte, int type)
{
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int result;

    do
        result = fcntl(fd, command, &lock);
    while (result < 0 && errno == EINTR);
    return result < 0 ? -1 : lock.l_type;
}

/* A test may stop a process that has the lock. A real GPU waits for nobody: so who waits long goes on without. */
void lock_shared(void)
{
    const struct timespec pause = {.tv_nsec = 50000};

    pthread_mutex_lock(&shared_lock);
    for (int tries = 0; fd >= 0 && tries < PATIENCE; tries++) {
        if (lock_byte(F_OFD_SETLK, WHOLE, F_WRLCK) >= 0)
            break;
        if (tries < SPINS)
            sched_yield();
        else
            nanosleep(&pause, NULL);
    }
}

void unlock_shared(void)
{
    if (fd >= 0)
        lock_byte(F_OFD_SETLK, WHOLE, F_UNLCK);
    pthread_mutex_unlock(&shared_lock);
}

bool row_lives(int row)
{
    if (row == my_row)
        return true;
    return fd >= 0 && lock_byte(F_OFD_GETLK, row, F_WRLCK) != F_UNLCK;
}

/* The pid that NVML knows: that of the namespace which /proc shows. */
static int visible_pid(void)
{
    FILE *file = fopen("/proc/self/stat", "re");
    int pid = (int)getpid();

    if (file) {
        if (fscanf(file, "%d", &pid) != 1)
            pid = (int)getpid();
        fclose(file);
    }
    return pid;
}

static int take_row(void)
{
    for (int i = 0; i < ROWS; i++)
        if (lock_byte(F_OFD_SETLK, i, F_WRLCK) >= 0) {
            memset(&shared->rows[i], 0, sizeof shared->rows[i]);
            shared->rows[i].pid = visible_pid();
            return i;
        }
    return -1;
}

/* The child of a fork has no part in what the driver does for its parent. */
static void leave_shared(void)
{
    if (fd >= 0)
        close(fd);
    fd = -1;
}

int open_shared(void)
{
    const char *path = getenv("FAKE_CUDA_SHARED");
    bool is_alone = !path || !*path;

    serial = setting("FAKE_CUDA_SERIAL", 0);
    if (!is_alone) {
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return OPERATING_SYSTEM;
    }
    lock_shared();
    if (!is_alone && ftruncate(fd, sizeof *shared) < 0)
        shared = MAP_FAILED;
    else
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                      is_alone ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED, fd, 0);
    if (shared != MAP_FAILED) {
        madvise(shared, sizeof *shared, MADV_DONTFORK);
        shared->magic = MAGIC;
        my_row = is_alone ? 0 : take_row();
        if (is_alone)
            shared->rows[0].pid = (int)getpid();
    }
    unlock_shared();
    pthread_atfork(NULL, NULL, leave_shared);
    return my_row < 0 ? OPERATING_SYSTEM : SUCCESS;
}

static u64 used(int index, u64 sum)
{
    for (int i = 0; i < ROWS; i++)
        if (shared->rows[i].used[index] && row_lives(i))
            sum += shared->rows[i].used[index];
    return sum;
}

int take_memory(int gpu, u64 bytes)
{
    int index = gpus[gpu].index, code = OUT_OF_MEMORY;
    u64 in_use, foreign = foreign_bytes(index);

    lock_shared();
    in_use = used(index, foreign);
    if (in_use <= gpus[gpu].bytes && bytes <= gpus[gpu].bytes - in_use) {
        shared->rows[my_row].used[index] += bytes;
        code = SUCCESS;
    }
    unlock_shared();
    return code;
}

void give_memory(int gpu, u64 bytes)
{
    shared->rows[my_row].used[gpus[gpu].index] -= bytes;
}

u64 free_memory(int gpu)
{
    u64 in_use, foreign = foreign_bytes(gpus[gpu].index);

    lock_shared();
    in_use = used(gpus[gpu].index, foreign);
    unlock_shared();
    return in_use < gpus[gpu].bytes ? gpus[gpu].bytes - in_use : 0;
}
