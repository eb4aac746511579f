// Recursion of changing depth, up to more frames than are walked, through two functions in turn, and qsort's callback in them.
#include <stdlib.h>

enum { DEEPEST = 530 };
static volatile unsigned seen;

static int descend(unsigned left, unsigned seed);

__attribute__((noinline)) static int beside(unsigned left, unsigned seed) {
    volatile unsigned room[1 + left % 7];
    room[left % 7] = seed;
    return descend(left - 1, seed * 1103515245 + 12345) + (int)room[left % 7];
}

static int compare(const void *one, const void *other) {
    const unsigned *a = one, *b = other;
    seen += *a;
    return (*a > *b) - (*a < *b);
}

__attribute__((noinline)) static int descend(unsigned left, unsigned seed) {
    if (left % 97 == 1) {
        unsigned list[64];
        for (unsigned i = 0; i < 64; i++) list[i] = seed = seed * 1103515245 + 12345;
        qsort(list, 64, sizeof *list, compare);
    }
    return left < 2 ? (int)seed : beside(left, seed) + 1;
}

int main(void) {
    for (unsigned i = 1;; i++) seen += (unsigned)descend(i * 7919 % DEEPEST + 1, i);
}
