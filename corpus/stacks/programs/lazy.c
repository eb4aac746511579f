// The dynamic loader at work: libraries come and go, and each function is bound at its first call.
#include <dlfcn.h>
#include <stdio.h>

static volatile unsigned sum;

int main(int count, char **arguments) {
    (void)count;
    for (;;) {
        void *library = dlopen(arguments[1], RTLD_LAZY);
        if (!library) return 1;
        unsigned (*function)(unsigned) = (unsigned (*)(unsigned))dlsym(library, "plt_through");
        sum += function(sum);
        dlclose(library);
    }
}
