// Calls that need no kernel.
#define _GNU_SOURCE
#include <sched.h>
#include <sys/time.h>
#include <time.h>

static volatile long sum;

__attribute__((noinline)) static void ask(int clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    sum += now.tv_nsec;
}

int main(void) {
    for (;;) {
        struct timeval now;
        ask(CLOCK_MONOTONIC);
        ask(CLOCK_REALTIME_COARSE);
        gettimeofday(&now, 0);
        sum += time(0) + sched_getcpu();
    }
}
