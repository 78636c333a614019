/* Which functions are hooked. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "names.h"
#include "share.h"

enum {
#define ROW(base, handler, variants) NUMBER_##base,
    HOOKS(ROW)
#undef ROW
    NUMBER
};

static const struct hook hooks[2][NUMBER] = {
#define ROW(base, handler, variants) {#base, handler, false},
    {HOOKS(ROW)},
#undef ROW
#define ROW(base, handler, variants) {#base, handler, true},
    {HOOKS(ROW)}
#undef ROW
};

/* The length of a symbol without its variant: "cuMemcpyHtoD_v2_ptds" has that of "cuMemcpyHtoD". */
static size_t base_length(const char *symbol, size_t length, bool *is_per_thread)
{
    *is_per_thread = length > 5 && (memcmp(symbol + length - 5, "_ptsz", 5) == 0 ||
                                    memcmp(symbol + length - 5, "_ptds", 5) == 0);
    length -= *is_per_thread ? 5 : 0;
    size_t digits = 0;
    while (digits < length && isdigit((unsigned char)symbol[length - 1 - digits]))
        digits++;
    if (digits && length > digits + 2 && memcmp(symbol + length - digits - 2, "_v", 2) == 0)
        length -= digits + 2;
    return length;
}

static const struct hook *named(const char *name, size_t length, bool is_per_thread)
{
    for (size_t i = 0; i < NUMBER; i++)
        if (strncmp(hooks[0][i].name, name, length) == 0 && hooks[0][i].name[length] == '\0')
            return &hooks[is_per_thread][i];
    return NULL;
}

const struct hook *hook_of(const char *symbol)
{
    if (strncmp(symbol, "cu", 2) != 0 && strncmp(symbol, "nvml", 4) != 0)
        return NULL;
    bool is_per_thread;
    size_t length = strlen(symbol), base = base_length(symbol, length, &is_per_thread);
    const struct hook *exact = named(symbol, length, false);
    return exact ? exact : named(symbol, base, is_per_thread);
}

/* cuGetProcAddress is called with names without a version, and returns the version of today's headers. */
const struct hook *hook_of_asked(const char *symbol, bool is_per_thread)
{
    char whole[64];
    if (hook_of(symbol))
        return &hooks[is_per_thread][hook_of(symbol) - hooks[hook_of(symbol)->is_per_thread]];
    bool fits = snprintf(whole, sizeof whole, "%s_v2", symbol) < (int)sizeof whole;
    return fits ? hook_of(whole) : NULL;
}
