/* The programs `slicer` and `slicer-broker`, as pip installs them: python -IS slicer-python PROGRAM CALLED [ARGUMENT]...,
 * CALLED being the path by which it is called.
 *
 * -S spares Python its search for packages, whose cost grows with what is installed beside slicer. -I leaves PYTHONPATH, other
 * PYTHON... variables and the user's own packages to the jobs. pip writes the interpreter into the first line of a script, and
 * drops flags there. So the script is slicer-python, beside this program, and this program reads its first line. It is no shell
 * script, because some shells drop variables that they cannot name, which the job would miss.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define SCRIPT "slicer-python"
#define NOT_FOUND 127

static int fail(const char *path, const char *why)
{
    fprintf(stderr, "error: slicer: %s: %s\n", path, why);
    return NOT_FOUND;
}

/* The script beside this program, wherever links to it are, and this program's name. */
static int find_script(char *path, char *name, size_t size)
{
    ssize_t length = readlink("/proc/self/exe", path, size);
    char *slash;

    if (length < 0)
        return -1;
    if ((size_t)length >= size) {
        errno = ENAMETOOLONG;
        return -1;
    }
    path[length] = '\0';
    slash = strrchr(path, '/');
    if (slash == NULL || (size_t)(slash + 1 - path) + sizeof SCRIPT > size) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(name, slash + 1);
    memcpy(slash + 1, SCRIPT, sizeof SCRIPT);
    return 0;
}

/* The interpreter that its first line names, or NULL: then the kernel knows better how to run it. */
static char *interpreter(char *head, ssize_t length)
{
    char *end;

    if (length < 3 || memcmp(head, "#!", 2) != 0)
        return NULL;
    head[length] = '\0';
    end = strchr(head, '\n');
    if (end == NULL || head[2] != '/')
        return NULL;
    *end = '\0';
    /* A path that a script's first line cannot hold: installers then write a line for sh. */
    if (strcmp(head + 2, "/bin/sh") == 0 || access(head + 2, X_OK) != 0)
        return NULL;
    return head + 2;
}

int main(int argc, char **argv)
{
    char script[PATH_MAX], name[PATH_MAX], head[PATH_MAX + 3], *python, **words;
    /* As the kernel tells a script its own name. */
    char *called = (char *)getauxval(AT_EXECFN);
    ssize_t length;
    int fd, i, count = 0;

    if (find_script(script, name, sizeof script) < 0)
        return fail("/proc/self/exe", strerror(errno));
    fd = open(script, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(script, strerror(errno));
    length = read(fd, head, sizeof head - 1);
    close(fd);
    words = calloc((size_t)argc + 6, sizeof *words);
    if (words == NULL)
        return fail(script, strerror(errno));
    python = interpreter(head, length);
    if (python != NULL) {
        words[count++] = python;
        words[count++] = "-IS";
    }
    words[count++] = script;
    words[count++] = name;
    words[count++] = called != NULL ? called : argv[0];
    for (i = 1; i < argc; i++)
        words[count++] = argv[i];
    execv(python != NULL ? python : script, words);
    return fail(words[0], strerror(errno));
}
