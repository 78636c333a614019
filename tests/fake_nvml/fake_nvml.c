/* A libnvidia-ml.so.1 without a GPU, for tests of the real pynvml.
 *
 * What it says is in the text file that $FAKE_NVML_STATE names, read anew on every call:
 *
 *     # INDEX UUID MEMORY_MIB BUS_ID MINOR UTILISATION_PERCENT NAME...
 *     gpu 0 GPU-aaaa 81559 00000000:01:00.0 0 12 NVIDIA H100 80GB HBM3
 *     # GPU_INDEX PID USED_MIB|n/a compute|graphics|mps
 *     process 0 4711 1024 compute
 *     # the same, listed only as long as there is such a process here (no zombie)
 *     live 0 4711 1024 compute
 *     # a process that uses a GPU, in each sample or in the one of that time (µs): GPU_INDEX PID PERCENT [TIME]
 *     busy 0 4711 40
 *     # memory in use that no listed process owns: GPU_INDEX MIB
 *     used 0 300
 *     # memory that the driver keeps for itself, out of the total (the old calls say: used)
 *     reserved 0 500
 *     # GPU_INDEX CURRENT PENDING; without it MIG is "not supported"
 *     mig 0 1 1
 *     # GPU_INDEX COMPUTE_MODE PERSISTENCE DISPLAY; without it 0 1 0
 *     setup 0 3 1
 *     # GPU_INDEX CELSIUS MILLIWATTS LIMIT_MILLIWATTS; without it these are "not supported"
 *     sensors 0 64 412300 700000
 *     # GPU_INDEX NVML_FI_DEV_GET_GPU_RECOVERY_ACTION; without it 0, none
 *     recovery 0 1
 *     # no GPU has a recovery action: it is "not supported", as with drivers before 560
 *     no-recovery
 *     # GPU_INDEX FAILURE of nvmlDeviceGetRemappedRows; without it these are "not supported"
 *     rows 0 1
 *     # a function without its _vN that never returns
 *     hang nvmlInit
 *     # a function without its _vN, an nvmlReturn_t, and optionally the one GPU it concerns
 *     error nvmlInit 9
 *     error nvmlDeviceGetHandleByIndex 15 1
 *     # the driver's version; without it 575.57.08
 *     driver 615.20.01
 *     # appends a line "PID NAME" to the file for each init and shutdown, and "PID limit GPU_INDEX SOFT HARD CGROUP"
 *     # for each limit of a cgroup (CGROUP: a directory that is there)
 *     log /path/to/log
 *
 * Beside it, the processes that use the fake CUDA driver, with their memory, where FAKE_CUDA_SHARED names its file.
 *
 * With FAKE_NVML_NODES set, a process sees the GPUs whose nodes it may open (EPERM: it may not), as with the driver.
 *
 * Without the variable or the file, nvmlInit answers NVML_ERROR_DRIVER_NOT_LOADED.
 * With -DOLD_DRIVER the functions that driver 510 and later ones brought are missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../fake_cuda/machine.h"

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, HANGS = -1, DRIVER_NOT_LOADED = 9, ARGUMENT_VERSION_MISMATCH = 25,
       UNKNOWN = 999 };
enum { RECOVERY_ACTION = 230 };
enum { CONTROL = 255 }; /* the minor number of /dev/nvidiactl */
enum { MAX_GPUS = 64, MAX_BUSY = 64, MAX_PROCESSES = 1024, MAX_ERRORS = 64, TEXT = 96, ANY = -1 };
#define NOT_AVAILABLE 0xffffffffffffffffULL
#define MIB (1ULL << 20)
#define API __attribute__((visibility("default"))) int

struct gpu { char uuid[TEXT], bus[32], name[TEXT]; unsigned long long mib, extra_mib, reserved_mib;
             unsigned minor, utilisation, mig, mig_pending, mode, display, degrees, milliwatts, limit;
             unsigned recovery, rows_failed;
             int there, has_mig, has_sensors, has_rows; };
struct process { int gpu; unsigned pid; unsigned long long mib; char kind[16]; };
struct failure { char name[TEXT]; int code, gpu; };
struct sample { unsigned pid; unsigned long long at_us; unsigned sm, memory, encoder, decoder; };
struct busy { int gpu; struct sample sample; };
struct state { struct gpu gpus[MAX_GPUS]; struct process processes[MAX_PROCESSES];
               struct failure failures[MAX_ERRORS]; struct busy busy[MAX_BUSY];
               unsigned count, n_processes, n_failures, n_busy, no_recovery;
               char log[4096], driver[TEXT]; };

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct utilisation { unsigned gpu, memory; };
struct limits { const char *directory; unsigned long long soft, hard; };
struct field { unsigned id, scope; long long at, latency; unsigned type, code; unsigned long long value; };
struct info { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

static struct state now;
static int initialised;

/* Whether the process is there and no zombie: only then the driver lists it. */
static int lives(unsigned pid)
{
    char path[32], text[512] = "";
    FILE *file;
    char *end;

    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    file = fopen(path, "re");
    if (!file)
        return 0;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    end = strrchr(text, ')');
    return end && end[1] == ' ' && end[2] != 'Z' && end[2] != 'X';
}

/* Whether FAKE_NVML_NODES is set, and this process may not open the node of that minor number: the driver then
 * knows nothing of the GPU. */
static int is_denied(unsigned minor)
{
    char path[32] = "/dev/nvidiactl";
    int fd;

    if (!getenv("FAKE_NVML_NODES"))
        return 0;
    if (minor != CONTROL)
        snprintf(path, sizeof path, "/dev/nvidia%u", minor);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0)
        close(fd);
    return fd < 0 && errno == EPERM;
}

static void parse(char *line)
{
    struct process p = {0};
    struct failure f = {.gpu = ANY};
    struct gpu g = {.there = 1};
    struct gpu s = {0};
    struct busy b = {0};
    char mib[32];
    unsigned long long extra;
    unsigned i, current, pending;

    line[strcspn(line, "\n")] = 0;
    if (sscanf(line, "gpu %u %95s %llu %31s %u %u %95[^\n]", &i, g.uuid, &g.mib, g.bus, &g.minor,
               &g.utilisation, g.name) == 7 && i < MAX_GPUS) {
        if (is_denied(g.minor))
            return;
        if (getenv("FAKE_NVML_NODES"))
            i = now.count;
        now.gpus[i] = g;
        if (i >= now.count)
            now.count = i + 1;
    } else if (sscanf(line, "process %d %u %31s %15s", &p.gpu, &p.pid, mib, p.kind) == 4 ||
               sscanf(line, "live %d %u %31s %15s", &p.gpu, &p.pid, mib, p.kind) == 4) {
        p.mib = strcmp(mib, "n/a") ? strtoull(mib, NULL, 10) : NOT_AVAILABLE;
        if (now.n_processes < MAX_PROCESSES && (*line == 'p' || lives(p.pid)))
            now.processes[now.n_processes++] = p;
    } else if (sscanf(line, "busy %d %u %u %llu", &b.gpu, &b.sample.pid, &b.sample.sm, &b.sample.at_us) >= 3) {
        if (now.n_busy < MAX_BUSY)
            now.busy[now.n_busy++] = b;
    } else if (sscanf(line, "used %u %llu", &i, &extra) == 2 && i < MAX_GPUS) {
        now.gpus[i].extra_mib = extra;
    } else if (sscanf(line, "reserved %u %llu", &i, &extra) == 2 && i < MAX_GPUS) {
        now.gpus[i].reserved_mib = extra;
    } else if (sscanf(line, "mig %u %u %u", &i, &current, &pending) == 3 && i < MAX_GPUS) {
        now.gpus[i].has_mig = 1, now.gpus[i].mig = current, now.gpus[i].mig_pending = pending;
    } else if (sscanf(line, "setup %u %u %u", &i, &s.mode, &s.display) == 3 && i < MAX_GPUS) {
        now.gpus[i].mode = s.mode, now.gpus[i].display = s.display;
    } else if (sscanf(line, "sensors %u %u %u %u", &i, &s.degrees, &s.milliwatts, &s.limit) == 4 && i < MAX_GPUS) {
        now.gpus[i].has_sensors = 1, now.gpus[i].degrees = s.degrees;
        now.gpus[i].milliwatts = s.milliwatts, now.gpus[i].limit = s.limit;
    } else if (strncmp(line, "no-recovery", 11) == 0) {
        now.no_recovery = 1;
    } else if (sscanf(line, "recovery %u %u", &i, &current) == 2 && i < MAX_GPUS) {
        now.gpus[i].recovery = current;
    } else if (sscanf(line, "rows %u %u", &i, &current) == 2 && i < MAX_GPUS) {
        now.gpus[i].has_rows = 1, now.gpus[i].rows_failed = current;
    } else if (sscanf(line, "hang %95s", f.name) == 1) {
        if (now.n_failures < MAX_ERRORS)
            f.code = HANGS, now.failures[now.n_failures++] = f;
    } else if (sscanf(line, "error %95s %d %d", f.name, &f.code, &f.gpu) >= 2) {
        if (now.n_failures < MAX_ERRORS)
            now.failures[now.n_failures++] = f;
    } else if (sscanf(line, "driver %95s", now.driver) == 1) {
    } else if (sscanf(line, "log %4095[^\n]", now.log) != 1 && *line && *line != '#') {
        fprintf(stderr, "fake nvml: cannot read this line of %s: %s\n", getenv("FAKE_NVML_STATE"), line);
        abort();
    }
}

/* The processes that use the fake CUDA driver. */
static void add_cuda_processes(void)
{
    const char *path = getenv("FAKE_CUDA_SHARED");
    int fd = path && *path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const struct shared *machine = MAP_FAILED;
    int pid;

    if (fd >= 0 && lseek(fd, 0, SEEK_END) >= (off_t)sizeof *machine)
        machine = mmap(NULL, sizeof *machine, PROT_READ, MAP_SHARED, fd, 0);
    for (int i = 0; machine != MAP_FAILED && i < MACHINE_ROWS; i++)
        for (int gpu = 0; (pid = machine->rows[i].pid) && gpu < MACHINE_GPUS; gpu++)
            if (machine->rows[i].used[gpu] && now.n_processes < MAX_PROCESSES && lives((unsigned)pid))
                now.processes[now.n_processes++] = (struct process){
                    .gpu = gpu, .pid = (unsigned)pid, .mib = machine->rows[i].used[gpu] / MIB, .kind = "compute"};
    if (machine != MAP_FAILED)
        munmap((void *)machine, sizeof *machine);
    if (fd >= 0)
        close(fd);
}

/* Reads the state; the failure that is ordered for this call, or SUCCESS. */
static int enter(const char *name, int gpu)
{
    const char *path = getenv("FAKE_NVML_STATE");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[4400];

    memset(&now, 0, sizeof now);
    if (!file)
        return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file))
        parse(line);
    fclose(file);
    add_cuda_processes();
    for (unsigned i = 0; i < now.n_failures; i++)
        if (!strcmp(now.failures[i].name, name) && (now.failures[i].gpu == ANY || now.failures[i].gpu == gpu)) {
            while (now.failures[i].code == HANGS)
                pause();
            return now.failures[i].code;
        }
    return !initialised && strcmp(name, "nvmlInit") ? UNINITIALIZED : SUCCESS;
}

/* A handle is the GPU's index + 1. */
static int enter_gpu(const char *name, void *handle, struct gpu **gpu)
{
    long index = (long)handle - 1;
    int code = enter(name, (int)index);

    if (code != SUCCESS)
        return code;
    if (index < 0 || index >= (long)now.count || !now.gpus[index].there)
        return INVALID_ARGUMENT;
    *gpu = &now.gpus[index];
    return SUCCESS;
}

static int give_text(char *to, unsigned size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

static void note(const char *what)
{
    FILE *file = *now.log ? fopen(now.log, "ae") : NULL;

    if (file) {
        fprintf(file, "%d %s\n", (int)getpid(), what);
        fclose(file);
    }
}

static void *idle(void *unused)
{
    for (;;)
        pause();
    return unused;
}

/* As driver 580 does it: such a thread has the caller's signal mask, and takes signals that the caller blocks later. */
static void start_thread(void)
{
    static int started;
    pthread_t thread;

    if (!started++ && !pthread_create(&thread, NULL, idle, NULL))
        pthread_detach(thread);
}

API nvmlInitWithFlags(unsigned flags)
{
    int code = enter("nvmlInit", ANY);

    (void)flags;
    if (code == SUCCESS && is_denied(CONTROL))
        return UNKNOWN;
    if (code == SUCCESS) {
        initialised++;
        start_thread();
        note("nvmlInit");
    }
    return code;
}

API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlShutdown(void)
{
    int code = enter("nvmlShutdown", ANY);

    if (code == SUCCESS) {
        initialised--;
        note("nvmlShutdown");
    }
    return code;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
    static char text[32];

    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

API nvmlSystemGetDriverVersion(char *to, unsigned size)
{
    int code = enter("nvmlSystemGetDriverVersion", ANY);
    return code ? code : give_text(to, size, *now.driver ? now.driver : "575.57.08");
}

API nvmlSystemGetNVMLVersion(char *to, unsigned size)
{
    int code = enter("nvmlSystemGetNVMLVersion", ANY);
    return code ? code : give_text(to, size, "12.575.57.08");
}

API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    *version = 12090;
    return enter("nvmlSystemGetCudaDriverVersion", ANY);
}

API nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API nvmlDeviceGetCount_v2(unsigned *count)
{
    int code = enter("nvmlDeviceGetCount", ANY);

    *count = now.count;
    return code;
}

API nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    struct gpu *gpu;

    *handle = (void *)(long)(index + 1);
    return enter_gpu("nvmlDeviceGetHandleByIndex", *handle, &gpu);
}

API nvmlDeviceGetHandleByIndex(unsigned index, void **handle)
{
    return nvmlDeviceGetHandleByIndex_v2(index, handle);
}

API nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    int code = enter("nvmlDeviceGetHandleByUUID", ANY);

    for (unsigned i = 0; code == SUCCESS && i < now.count; i++)
        if (!strcmp(now.gpus[i].uuid, uuid)) {
            *handle = (void *)(long)(i + 1);
            return SUCCESS;
        }
    return code ? code : NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle)
{
    int code = enter("nvmlDeviceGetHandleByPciBusId", ANY);

    for (unsigned i = 0; code == SUCCESS && i < now.count; i++)
        if (!strcasecmp(now.gpus[i].bus, bus)) {
            *handle = (void *)(long)(i + 1);
            return SUCCESS;
        }
    return code ? code : NOT_FOUND;
}

API nvmlDeviceGetIndex(void *handle, unsigned *index)
{
    struct gpu *gpu;

    *index = (unsigned)((long)handle - 1);
    return enter_gpu("nvmlDeviceGetIndex", handle, &gpu);
}

API nvmlDeviceGetUUID(void *handle, char *to, unsigned size)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetUUID", handle, &gpu);
    return code ? code : give_text(to, size, gpu->uuid);
}

API nvmlDeviceGetName(void *handle, char *to, unsigned size)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetName", handle, &gpu);
    return code ? code : give_text(to, size, gpu->name);
}

API nvmlDeviceGetMinorNumber(void *handle, unsigned *minor)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetMinorNumber", handle, &gpu);

    if (code == SUCCESS)
        *minor = gpu->minor;
    return code;
}

API nvmlDeviceGetPciInfo_v3(void *handle, struct pci *to)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetPciInfo", handle, &gpu);

    if (code == SUCCESS) {
        memset(to, 0, sizeof *to);
        strcpy(to->bus_id, gpu->bus);
        sscanf(gpu->bus, "%x:%x:%x", &to->domain, &to->bus, &to->device);
        snprintf(to->legacy, sizeof to->legacy, "%04hx:%02hhx:%02hhx.0", (unsigned short)to->domain,
                 (unsigned char)to->bus, (unsigned char)to->device);
    }
    return code;
}

API nvmlDeviceGetUtilizationRates(void *handle, struct utilisation *to)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetUtilizationRates", handle, &gpu);

    if (code == SUCCESS)
        *to = (struct utilisation){gpu->utilisation, gpu->utilisation / 2};
    return code;
}

API nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *to)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetTemperature", handle, &gpu);

    if (code == SUCCESS && sensor)
        return INVALID_ARGUMENT;
    if (code == SUCCESS)
        *to = gpu->degrees;
    return code == SUCCESS && !gpu->has_sensors ? NOT_SUPPORTED : code;
}

#ifndef OLD_DRIVER
struct temperature { unsigned version; int sensor; int degrees; };

API nvmlDeviceGetTemperatureV(void *handle, struct temperature *to)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetTemperatureV", handle, &gpu);

    if (code == SUCCESS && (to->version >> 24 != 1 || to->sensor))
        return INVALID_ARGUMENT;
    if (code == SUCCESS)
        to->degrees = (int)gpu->degrees;
    return code == SUCCESS && !gpu->has_sensors ? NOT_SUPPORTED : code;
}
#endif

API nvmlDeviceGetPowerUsage(void *handle, unsigned *to)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetPowerUsage", handle, &gpu);

    if (code == SUCCESS)
        *to = gpu->milliwatts;
    return code == SUCCESS && !gpu->has_sensors ? NOT_SUPPORTED : code;
}

API nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *to)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetEnforcedPowerLimit", handle, &gpu);

    if (code == SUCCESS)
        *to = gpu->limit;
    return code == SUCCESS && !gpu->has_sensors ? NOT_SUPPORTED : code;
}

API nvmlDeviceGetProcessUtilization(void *handle, struct sample *to, unsigned *count, unsigned long long since_us)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetProcessUtilization", handle, &gpu);
    unsigned room = *count, found = 0;
    struct timespec at;

    clock_gettime(CLOCK_REALTIME, &at);
    for (unsigned i = 0; code == SUCCESS && i < now.n_busy; i++) {
        struct sample each = now.busy[i].sample;
        each.at_us = each.at_us ? each.at_us : (unsigned long long)at.tv_sec * 1000000 + (unsigned)(at.tv_nsec / 1000);
        if (gpu != &now.gpus[now.busy[i].gpu] || each.at_us <= since_us)
            continue;
        if (to && found < room)
            to[found] = each;
        found++;
    }
    *count = found;
    return code ? code : !found ? NOT_FOUND : to && found <= room ? SUCCESS : INSUFFICIENT_SIZE;
}

API nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetMigMode", handle, &gpu);

    if (code != SUCCESS)
        return code;
    *current = gpu->mig, *pending = gpu->mig_pending;
    return gpu->has_mig ? SUCCESS : NOT_SUPPORTED;
}

API nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetRemappedRows", handle, &gpu);

    if (code != SUCCESS)
        return code;
    *corrected = *uncorrected = *pending = 0, *failed = gpu->rows_failed;
    return gpu->has_rows ? SUCCESS : NOT_SUPPORTED;
}

API nvmlDeviceGetComputeMode(void *handle, unsigned *mode)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetComputeMode", handle, &gpu);

    if (code == SUCCESS)
        *mode = gpu->mode;
    return code;
}

API nvmlDeviceGetDisplayActive(void *handle, unsigned *is_on)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetDisplayActive", handle, &gpu);

    if (code == SUCCESS)
        *is_on = gpu->display;
    return code;
}

#ifndef OLD_DRIVER
API nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetFieldValues", handle, &gpu);

    for (int i = 0; code == SUCCESS && i < count; i++) {
        fields[i].code = fields[i].id == RECOVERY_ACTION && !now.no_recovery ? SUCCESS : NOT_SUPPORTED;
        fields[i].value = gpu->recovery;
    }
    return code;
}

API nvmlDeviceSetMemoryLimits_v1(void *handle, struct limits *to)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceSetMemoryLimits", handle, &gpu);
    char line[4400];

    if (code != SUCCESS)
        return code;
    if (gpu->mig)
        return NOT_SUPPORTED;
    if (access(to->directory, F_OK))
        return NOT_FOUND;
    snprintf(line, sizeof line, "limit %d %llu %llu %s", (int)(gpu - now.gpus), to->soft, to->hard, to->directory);
    note(line);
    return SUCCESS;
}
#endif

static unsigned long long used_bytes(int index)
{
    unsigned long long mib = now.gpus[index].extra_mib;

    for (unsigned i = 0; i < now.n_processes; i++)
        if (now.processes[i].gpu == index && now.processes[i].mib != NOT_AVAILABLE)
            mib += now.processes[i].mib;
    return mib * MIB;
}

/* Without a version, what the driver keeps counts as used. */
static int memory_info(void *handle, struct memory_v2 *to)
{
    struct gpu *gpu;
    int code = enter_gpu("nvmlDeviceGetMemoryInfo", handle, &gpu);
    unsigned long long taken;

    if (code == SUCCESS) {
        to->total = gpu->mib * MIB;
        to->reserved = gpu->reserved_mib * MIB;
        to->used = used_bytes((int)(gpu - now.gpus));
        taken = to->reserved + to->used;
        to->free = to->total > taken ? to->total - taken : 0;
    }
    return code;
}

API nvmlDeviceGetMemoryInfo(void *handle, struct memory *to)
{
    struct memory_v2 all;
    int code = memory_info(handle, &all);

    if (code == SUCCESS)
        *to = (struct memory){all.total, all.free, all.used + all.reserved};
    return code;
}

#ifndef OLD_DRIVER
API nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *to)
{
    return to->version == (sizeof *to | 2U << 24) ? memory_info(handle, to) : ARGUMENT_VERSION_MISMATCH;
}
#endif

/* NVML's protocol: *count is the room given and comes back as the room needed. */
static int running(const char *name, const char *kind, void *handle, unsigned *count, struct info *to)
{
    struct gpu *gpu;
    int code = enter_gpu(name, handle, &gpu);
    unsigned room = *count;

    if (code != SUCCESS)
        return code;
    *count = 0;
    for (unsigned i = 0; i < now.n_processes; i++) {
        struct process *p = &now.processes[i];

        if (p->gpu != (long)handle - 1 || strcmp(p->kind, kind))
            continue;
        if (to && *count < room)
            to[*count] = (struct info){p->pid, p->mib == NOT_AVAILABLE ? p->mib : p->mib * MIB, ~0U, ~0U};
        ++*count;
    }
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#define RUNNING(NAME, VERSION, KIND) \
    API NAME##VERSION(void *handle, unsigned *count, struct info *to) \
    { \
        return running(#NAME, KIND, handle, count, to); \
    }

RUNNING(nvmlDeviceGetComputeRunningProcesses, _v2, "compute")
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, _v2, "graphics")
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, _v2, "mps")
#ifndef OLD_DRIVER
RUNNING(nvmlDeviceGetComputeRunningProcesses, _v3, "compute")
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, _v3, "graphics")
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, _v3, "mps")
#endif
