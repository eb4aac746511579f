/* What a changed file may lose: data, symbols, thread-local storage, IFUNCs, program headers, unwinding. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

int exported = 42;
const char constant[] = "constant";
int (*pointers[])(const char *) = {puts, puts};
static __thread int own = 7;
char zeros[100000];

int twice(int n) { return n * 2; }
static int (*choose(void))(int) { return twice; }
int chosen(int) __attribute__((ifunc("choose")));

static void *in_thread(void *argument) {
    own += *(int *) argument;
    return (void *) (long) own;
}

static int headers(struct dl_phdr_info *info, size_t size, void *found) {
    if (!*(int *) found && (info->dlpi_name == NULL || !*info->dlpi_name)) {
        int loads = 0, executable = 0;
        for (int i = 0; i < info->dlpi_phnum; i++) {
            loads += info->dlpi_phdr[i].p_type == PT_LOAD;
            executable += info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X;
        }
        *(int *) found = loads > 0 && executable == 1;
        printf("AT_PHDR %s\n", (void *) getauxval(AT_PHDR) == (void *) info->dlpi_phdr ? "right" : "wrong");
    }
    return 0;
}

static int compare(const void *a, const void *b) { return *(const int *) a - *(const int *) b; }

int main(int count, char **words) {
    int numbers[] = {3, 1, 2}, one = 1, found = 0;
    void *result;
    pthread_t thread;
    qsort(numbers, 3, sizeof *numbers, compare);
    pthread_create(&thread, NULL, in_thread, &one);
    pthread_join(thread, &result);
    dl_iterate_phdr(headers, &found);
    long sum = 0;
    for (size_t i = 0; i < sizeof zeros; i++) sum += zeros[i];
    printf("%d%d%d %ld %d %d %ld %d %s\n", numbers[0], numbers[1], numbers[2], (long) result, own, chosen(21), sum, found, strerror(ENOENT));
    pointers[0](constant);
#ifndef STATIC
    void *self = dlopen(NULL, RTLD_NOW);
    const struct { const char *name; void *is; } symbols[] = {
        {"exported", &exported}, {"constant", (void *) constant}, {"twice", (void *) twice}, {"main", (void *) main}, {"zeros", zeros},
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *at = dlsym(self, symbols[i].name);
        printf("%s: %s\n", symbols[i].name, at == symbols[i].is ? "right" : at ? "wrong" : "none");
    }
    Dl_info info;
    printf("dladdr: %s\n", dladdr((void *) main, &info) && info.dli_sname ? info.dli_sname : "none");
#endif
    return 0;
}
