/* usage: walks SCENARIO [NUMBER]: prints the frames that glibc's backtrace() finds at one place, a line each: OBJECT+OFFSET. */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 1000
#define APART __attribute__((noinline, noclone))

static void *frames[DEPTH + 100];
static volatile int used;

APART void show(void)
{
    int found = backtrace(frames, sizeof frames / sizeof *frames);
    for (int i = 0; i < found; i++) {
        Dl_info info = {0};
        if (dladdr(frames[i], &info) && info.dli_fname)
            printf("%s+%#lx\n", basename(info.dli_fname), (unsigned long) ((char *) frames[i] - (char *) info.dli_fbase));
        else
            puts("nowhere");
    }
    fflush(stdout);
}

APART int deep(int left)
{
    if (left)
        return deep(left - 1) + 1;
    show();
    return used;
}

static void *library(const char *with)
{
    setenv("PLUGIN", with, 1);
    void *handle = dlopen("plugin.so", RTLD_NOW);
    if (!handle) {
        fputs(dlerror(), stderr);
        exit(2);
    }
    return handle;
}

static void from_library(void)
{
    int (*through)(void (*)(void), int) = (int (*)(void (*)(void), int)) dlsym(library(""), "through");
    used = through(show, 3);
}

static int compare(const void *one, const void *other)
{
    if (!used) {
        used = 1;
        show();
    }
    return *(const int *) one - *(const int *) other;
}

static void sort(void)
{
    int numbers[] = {5, 3, 9, 1, 7, 2};
    qsort(numbers, sizeof numbers / sizeof *numbers, sizeof *numbers, compare);
    used = numbers[0];
}

APART int on_alloca(int size)
{
    char *room = alloca(size);
    memset(room, size, size);
    used = room[size / 2];
    show();
    return room[size - 1] + used;
}

__attribute__((noinline, noclone, optimize("no-omit-frame-pointer"))) int with_frame_pointer(int size)
{
    return on_alloca(size) + on_alloca(size + 1) * used;
}

static void twice(void)
{
    used = with_frame_pointer(100);
}

/* Arguments on the stack and locals that are aligned more than it is: the CFA is what a register, then a slot holds (DRAP). */
APART int realigned(int a, int b, int c, int d, int e, int f, int g, int size)
{
    char room[64] __attribute__((aligned(64)));
    char *more = alloca(size);
    memset(room, a, sizeof room);
    memset(more, g, size);
    used = room[b] + more[c] + d + e + f;
    show();
    return room[a] + more[g] + used;
}

static void realign(void)
{
    used = realigned(1, 2, 3, 4, 5, 6, 7, 80);
}

static void on_signal(int number)
{
    used = number;
    show();
    if (number == SIGSEGV)
        _exit(0);
}

APART int raises(int number)
{
    raise(number);
    return used + 1;
}

static void signalled(void)
{
    signal(SIGUSR1, on_signal);
    used = raises(SIGUSR1);
}

APART int reads(const int *place) /* its first instruction is the one that fails */
{
    return *place;
}

static void fault(void)
{
    signal(SIGSEGV, on_signal);
    used = reads((const int *) 8) + 1;
}

static void *worker(void *argument)
{
    used = deep(3);
    return argument;
}

static void thread(void)
{
    pthread_t one;
    pthread_create(&one, NULL, worker, NULL);
    pthread_join(one, NULL);
}

APART __attribute__((noreturn)) void end(void)
{
    show();
    _exit(0);
}

/* Functions that end with a call that never returns; what follows it is padding of 0 to 15 bytes, another number in each. */
#define NEVER(n) APART __attribute__((noreturn)) void never_##n(void) { __asm__ volatile (".rept 1 + " #n "; nop; .endr"); end(); }
#define ALL(of) of(0) of(1) of(2) of(3) of(4) of(5) of(6) of(7) of(8) of(9) of(10) of(11) of(12) of(13) of(14) of(15)
ALL(NEVER)
#define NAME(n) never_##n,
static void (*const nevers[])(void) = {ALL(NAME)};

static void constructor(void)
{
    library("constructor");
}

static void recursion(void)
{
    used = deep(DEPTH);
}

static const struct {
    const char *name;
    void (*run)(void);
} scenarios[] = {
    {"recursion", recursion}, {"dlopen", from_library}, {"constructor", constructor}, {"qsort", sort}, {"alloca", twice},
    {"realigned", realign},   {"signal", signalled},    {"fault", fault},             {"thread", thread},
};

int main(int argc, char **argv)
{
    backtrace(frames, DEPTH); /* loads libgcc_s, to which it turns where SFrame gives it no frames */
    if (argc > 2)
        nevers[atoi(argv[2])]();
    for (size_t i = 0; argc > 1 && i < sizeof scenarios / sizeof *scenarios; i++)
        if (!strcmp(argv[1], scenarios[i].name)) {
            scenarios[i].run();
            return 0;
        }
    return 2;
}
