// Work at one depth of calls. usage: depth FRAMES TURNS SLICES; FRAMES counts main's callers too. It prints "ready", waits for a
// line, and then prints the CPU time of each slice (ns). With no slices it waits for nothing, and does not end.
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

static long used(void) {
    struct timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return at.tv_sec * 1000000000L + at.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    long depth = atol(argv[1]) - OTHERS, turns = atol(argv[2]), slices = atol(argv[3]);
    if (slices == 0)
        for (;;) down(depth);
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 1;
    long *taken = calloc(slices, sizeof *taken);
    for (long slice = 0; slice < slices; slice++) {
        long before = used();
        for (long i = 0; i < turns; i++) down(depth);
        taken[slice] = used() - before;
    }
    for (long slice = 0; slice < slices; slice++) printf("%ld ", taken[slice]);
    puts("");
    return 0;
}
