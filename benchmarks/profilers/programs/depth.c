// Work at one depth of calls. usage: depth FRAMES TURNS [forever]; FRAMES counts main's callers too. It prints "ready", waits for
// a line, does the work and prints the CPU time it took (ns) and the time that passed (ns). With "forever" it waits for nothing.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { OTHERS = 6, TURN = 20000 }; // _start, two of libc, main, down's first call, turn
static volatile unsigned long seed;

__attribute__((noinline)) static unsigned long turn(void) {
    unsigned long x = seed;
    for (unsigned long i = 0; i < TURN; i++) x = x * 6364136223846793005ul + 1;
    return seed = x;
}

__attribute__((noinline)) static unsigned long down(long depth) {
    unsigned long result = depth > 0 ? down(depth - 1) : turn();
    __asm__ volatile("" ::"r"(result)); // the call is not the last thing that this function does
    return result + 1;
}

static long now(clockid_t clock) {
    struct timespec at;
    clock_gettime(clock, &at);
    return at.tv_sec * 1000000000L + at.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    long depth = atol(argv[1]) - OTHERS, turns = atol(argv[2]);
    if (argc > 3)
        for (;;) down(depth);
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    long cpu = now(CLOCK_PROCESS_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);
    for (long i = 0; i < turns; i++) down(depth);
    cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    printf("%ld %ld\n", cpu, now(CLOCK_MONOTONIC) - wall);
    return 0;
}
