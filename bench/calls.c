/* What one call of the CUDA driver costs a program: prints the nanoseconds of a call, a line a round.
 *
 *     calls launch|memory|context CALLS ROUNDS [flock|semaphore FILE]
 *     calls idle
 *
 * "launch" is one kernel, "memory" an allocation and its free, "context" asks which one is current. "idle" launches one
 * kernel, and does nothing until its input ends. With "flock" and "semaphore" the program takes such a lock
 * around each call, as simpler tools do for it. It finds the driver with dlopen and dlsym, and needs no headers of it.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <time.h>

typedef unsigned long long u64;

static int (*launch_kernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                            void **);
static int (*mem_alloc)(u64 *, size_t), (*mem_free)(u64), (*synchronize)(void), (*get_current)(void **);
static void *function;
static enum { BARE, FLOCK, SEMAPHORE } around;
static int lock; /* a descriptor, or a set of semaphores */

static void check(int is_right, const char *what)
{
    if (is_right)
        return;
    fprintf(stderr, "calls: %s failed\n", what);
    exit(1);
}

static void *found(void *driver, const char *name)
{
    void *symbol = dlsym(driver, name);
    check(symbol != NULL, name);
    return symbol;
}

static void open_gpu(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL, *module = NULL;
    check(driver != NULL, "dlopen of libcuda.so.1");
    int (*init)(unsigned) = found(driver, "cuInit");
    int (*retain)(void **, int) = found(driver, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = found(driver, "cuCtxSetCurrent");
    int (*load)(void **, const void *) = found(driver, "cuModuleLoadData");
    int (*get)(void **, void *, const char *) = found(driver, "cuModuleGetFunction");
    launch_kernel = found(driver, "cuLaunchKernel");
    mem_alloc = found(driver, "cuMemAlloc_v2");
    mem_free = found(driver, "cuMemFree_v2");
    synchronize = found(driver, "cuCtxSynchronize");
    get_current = found(driver, "cuCtxGetCurrent");
    check(init(0) == 0, "cuInit");
    check(retain(&context, 0) == 0 && set_current(context) == 0, "the context");
    const char *ptx = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() { ret; }\n";
    check(load(&module, ptx) == 0 && get(&function, module, "nothing") == 0, "the kernel");
}

static void take(int direction)
{
    struct sembuf step = {0, (short)direction, SEM_UNDO};
    if (around == FLOCK)
        check(flock(lock, direction < 0 ? LOCK_EX : LOCK_UN) == 0, "flock");
    else if (around == SEMAPHORE)
        check(semop(lock, &step, 1) == 0, "semop");
}

static void call(char what)
{
    u64 address;
    void *context;
    take(-1);
    if (what == 'l')
        check(launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL) == 0, "cuLaunchKernel");
    else if (what == 'c')
        check(get_current(&context) == 0, "cuCtxGetCurrent");
    else
        check(mem_alloc(&address, 1 << 20) == 0 && mem_free(address) == 0, "cuMemAlloc");
    take(1);
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void open_lock(const char *kind, const char *file)
{
    around = strcmp(kind, "flock") == 0 ? FLOCK : SEMAPHORE;
    lock = around == FLOCK ? open(file, O_RDWR | O_CREAT, 0600) : semget(IPC_PRIVATE, 1, 0600);
    check(lock >= 0, kind);
    if (around == SEMAPHORE)
        check(semctl(lock, 0, SETVAL, 1) == 0, "semctl");
}

static int idle(void)
{
    call('l');
    check(synchronize() == 0 && puts("idle") >= 0 && fflush(stdout) == 0, "the kernel");
    while (getchar() != EOF)
        continue;
    return 0;
}

int main(int argc, char **argv)
{
    check(argc == 2 || argc == 4 || argc == 6, "reading the arguments");
    open_gpu();
    if (argc == 2)
        return idle();
    int calls = atoi(argv[2]), rounds = atoi(argv[3]);
    if (argc == 6)
        open_lock(argv[4], argv[5]);
    for (int round = 0; round < rounds; round++) {
        double begin = now_ns();
        for (int i = 0; i < calls; i++)
            call(*argv[1]);
        printf("%.2f\n", (now_ns() - begin) / calls);
        check(synchronize() == 0, "cuCtxSynchronize");
    }
    if (around == SEMAPHORE)
        semctl(lock, 0, IPC_RMID);
    return 0;
}
