// Threads that wait, each some calls deeper than the one before it: sixteen calls and more, through qsort's comparison now and then.
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 64, LEAST = 16, KINDS = 24 };
static pthread_barrier_t all;
static volatile long sum;

static void descend(long depth);
static long deeper;

static int compare(const void *one, const void *other) {
    descend(*(const long *)one > *(const long *)other ? *(const long *)one : *(const long *)other);
    return 0;
}

__attribute__((noinline)) static void sorting(long depth) {
    long two[2] = {depth, depth - 1};
    qsort(two, 2, sizeof two[0], compare);
    sum += two[0];
}

__attribute__((noinline)) static void descend(long depth) {
    volatile long room[6] = {depth};
    if (depth <= 0) {
        pthread_barrier_wait(&all);
        for (;;) pause();
    }
    if (depth % 8 == 7) sorting(depth - 1);
    else descend(depth - 1);
    sum += room[0] + deeper;
}

static void *work(void *number) {
    descend(LEAST + (long)number % KINDS);
    return 0;
}

int main(void) {
    pthread_t thread;
    pthread_barrier_init(&all, 0, THREADS);
    for (long number = 1; number < THREADS; number++) pthread_create(&thread, 0, work, (void *)number);
    descend(LEAST);
}
