// Short functions of all kinds, to be stepped through: leaves, several ways out, frame pointers, rooms of a size known at run time.
#include <alloca.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

static volatile unsigned sum;
static jmp_buf place;

__attribute__((noinline)) static unsigned leaf(unsigned a) { return a * 7 + 1; }

__attribute__((noinline)) static unsigned ways_out(unsigned a) {
    if (a % 3 == 0) return a;
    unsigned b = leaf(a);
    if (b % 5 == 0) return leaf(b) + a;
    return leaf(a ^ b) + leaf(b) + a;
}

__attribute__((noinline)) static unsigned saves_many(unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g) {
    unsigned x = leaf(a), y = leaf(b), z = leaf(c), v = leaf(d), w = leaf(e);
    return leaf(x + y) * f + leaf(z + v) * g + leaf(w) + a + b + c + d + e;
}

__attribute__((noinline, optimize("no-omit-frame-pointer"))) static unsigned by_frame_pointer(unsigned a) {
    volatile unsigned room[5] = {a};
    return leaf(room[0]) + room[1];
}

__attribute__((noinline)) static unsigned grows(unsigned a) {
    char *room = alloca(a % 50 + 1);
    room[a % 50] = (char)a;
    return leaf((unsigned char)room[a % 50]) + (unsigned char)room[a % 50];
}

__attribute__((noinline)) static unsigned tail(unsigned a) { return ways_out(a + 1); }

__attribute__((noinline)) static unsigned far(unsigned a) {
    if (setjmp(place) == 0 && a % 2) longjmp(place, 1);
    return leaf(a);
}

static int ascending(const void *one, const void *other) { return *(const int *)one - *(const int *)other; }

int main(void) {
    for (unsigned i = 0;; i++) {
        int some[3] = {3, (int)(i % 7), 1};
        sum += ways_out(i) + saves_many(i, 1, 2, 3, 4, 5, 6) + by_frame_pointer(i) + grows(i) + tail(i) + far(i);
        qsort(some, 3, sizeof some[0], ascending);
        sum += (unsigned)some[0] + (unsigned)strlen("edge");
    }
}
