/* `loader LIBRARY [deepbind] HOW`: runs the client in a library, loaded with RTLD_DEEPBIND as some
 * applications do. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int is_deep = argc > 2 && !strcmp(argv[2], "deepbind");
    void *library = dlopen(argv[1], RTLD_NOW | (is_deep ? RTLD_DEEPBIND : 0));
    int (*client)(int, char **) = library ? (int (*)(int, char **))dlsym(library, "client_main") : NULL;

    if (!client) {
        fprintf(stderr, "loader: %s\n", dlerror());
        return 2;
    }
    return client(argc - 1 - is_deep, argv + 1 + is_deep);
}
