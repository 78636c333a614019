/* A program over the driver's API in C, as small as it gets: HOW NUMBER [PLUGIN], where HOW is getproc (each function
 * through cuGetProcAddress, as CUDA's runtime does), launch (through dlsym) or deepbind (the same, by this very program
 * compiled as a library, PLUGIN, which is opened with RTLD_DEEPBIND). Prints a line of JSON: what was done, and how long
 * the launch of an empty kernel takes. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int result;
static void *library;
static result (*get)(const char *, void **, int, uint64_t, void *);

static const char *const TEXT[] = {
    ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry spin_empty(.param .u64 ns)\n{\n    ret;\n}\n",
    ".version 6.3\n.target sm_75\n.address_size 64\n.visible .entry spin_empty(.param .u64 ns)\n{\n    ret;\n}\n",
};

static void *function(const char *base, const char *symbol)
{
    void *found = NULL;

    if (!get || get(base, &found, 11030, 0, NULL) || !found)
        found = get ? NULL : dlsym(library, symbol);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", symbol);
        exit(1);
    }
    return found;
}

static void must(result code, const char *what)
{
    if (code) {
        fprintf(stderr, "%s failed (%d)\n", what, code);
        exit(1);
    }
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

#define GET(name, parameters, base, symbol) result(*name) parameters = (result(*) parameters)function(base, symbol)

int run(int count, char **words)
{
    const char *how = count > 2 ? words[1] : "getproc";
    int number = count > 2 ? atoi(words[2]) : 100, device;
    void *context, *module = NULL, *kernel, *stream;
    uint64_t ns = 0, address;
    void *arguments[] = {&ns};
    result code = 1;
    int64_t start, took;

    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    if (!strcmp(how, "getproc"))
        *(void **)&get = dlsym(library, "cuGetProcAddress");
    GET(init, (unsigned), "cuInit", "cuInit");
    must(init(0), "cuInit");
    GET(get_device, (int *, int), "cuDeviceGet", "cuDeviceGet");
    GET(retain, (void **, int), "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRetain");
    GET(set_current, (void *), "cuCtxSetCurrent", "cuCtxSetCurrent");
    GET(load, (void **, const char *), "cuModuleLoadData", "cuModuleLoadData");
    GET(find, (void **, void *, const char *), "cuModuleGetFunction", "cuModuleGetFunction");
    GET(make_stream, (void **, unsigned), "cuStreamCreate", "cuStreamCreate");
    GET(wait, (void *), "cuStreamSynchronize", "cuStreamSynchronize");
    GET(allocate, (uint64_t *, size_t), "cuMemAlloc", "cuMemAlloc_v2");
    GET(set, (uint64_t, unsigned, size_t, void *), "cuMemsetD32Async", "cuMemsetD32Async");
    GET(back, (void *, uint64_t, size_t), "cuMemcpyDtoH", "cuMemcpyDtoH_v2");
    GET(launch, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
        "cuLaunchKernel", "cuLaunchKernel");
    must(get_device(&device, 0), "cuDeviceGet");
    must(retain(&context, device), "cuDevicePrimaryCtxRetain");
    must(set_current(context), "cuCtxSetCurrent");
    for (size_t i = 0; code && i < sizeof TEXT / sizeof *TEXT; i++)
        code = load(&module, TEXT[i]);
    must(code, "cuModuleLoadData");
    must(find(&kernel, module, "spin_empty"), "cuModuleGetFunction");
    must(make_stream(&stream, 1), "cuStreamCreate");
    must(allocate(&address, 4096), "cuMemAlloc");
    must(set(address, 7, 1024, stream), "cuMemsetD32Async");
    must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL), "cuLaunchKernel");
    must(wait(stream), "cuStreamSynchronize");
    took = 0;
    for (int i = 0; i < number; i += 500) {
        start = now_ns();
        for (int j = i; j < number && j < i + 500; j++)
            must(launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL), "cuLaunchKernel");
        took += now_ns() - start;
        must(wait(stream), "cuStreamSynchronize");
    }
    uint32_t word = 0;
    must(back(&word, address, sizeof word), "cuMemcpyDtoH");
    printf("{\"launch_ns\": %.1f, \"gated\": %d, \"is_right\": %s}\n", (double)took / number, number + 3,
           word == 7 ? "true" : "false");
    return 0;
}

int main(int count, char **words)
{
    void *plugin;
    int (*of_plugin)(int, char **);

    if (count < 4 || strcmp(words[1], "deepbind"))
        return run(count, words);
    plugin = dlopen(words[3], RTLD_NOW | RTLD_DEEPBIND);
    *(void **)&of_plugin = plugin ? dlsym(plugin, "run") : NULL;
    if (!of_plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    return of_plugin(count, words);
}
