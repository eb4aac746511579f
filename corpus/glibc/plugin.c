/* A library that walks.c loads: calls back, or walks while it is being loaded. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

int through(void (*callback)(void), int left)
{
    volatile char room[40] = {(char) left};
    if (left)
        return through(callback, left - 1) + room[left];
    callback();
    return room[0];
}

__attribute__((constructor)) static void loaded(void)
{
    const char *with = getenv("PLUGIN");
    void (*show)(void) = with && !strcmp(with, "constructor") ? (void (*)(void)) dlsym(RTLD_DEFAULT, "show") : NULL;
    if (show)
        through(show, 2);
}
