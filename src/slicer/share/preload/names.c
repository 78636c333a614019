/* Which functions are hooked. */
#include <ctype.h>
#include <string.h>

#include "names.h"
#include "share.h"

static const struct hook hooks[] = {
#define ROW(base, handler) {#base, handler},
    HOOKS(ROW)
#undef ROW
};

/* The length of a symbol without its variant: "cuMemcpyHtoD_v2_ptds" has that of "cuMemcpyHtoD". */
static size_t base_length(const char *symbol, size_t length)
{
    if (length > 5 && (memcmp(symbol + length - 5, "_ptsz", 5) == 0 || memcmp(symbol + length - 5, "_ptds", 5) == 0))
        length -= 5;
    size_t digits = 0;
    while (digits < length && isdigit((unsigned char)symbol[length - 1 - digits]))
        digits++;
    if (digits && length > digits + 2 && memcmp(symbol + length - digits - 2, "_v", 2) == 0)
        length -= digits + 2;
    return length;
}

static const struct hook *named(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof hooks / sizeof *hooks; i++)
        if (strncmp(hooks[i].name, name, length) == 0 && hooks[i].name[length] == '\0')
            return &hooks[i];
    return NULL;
}

const struct hook *hook_of(const char *symbol)
{
    if (strncmp(symbol, "cu", 2) != 0 && strncmp(symbol, "nvml", 4) != 0)
        return NULL;
    size_t length = strlen(symbol);
    const struct hook *exact = named(symbol, length);
    return exact ? exact : named(symbol, base_length(symbol, length));
}
