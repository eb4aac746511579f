// Functions that align their stack themselves: locals that want more than the ABI gives, -mstackrealign, and both with alloca.
#include <alloca.h>
#include <string.h>

static volatile unsigned sum;

__attribute__((noinline)) static void use(char *room, unsigned size) {
    memset(room, (int)size, size);
    sum += (unsigned char)room[size / 2];
}

__attribute__((noinline)) static void wide(unsigned a) {
    _Alignas(64) char room[128];
    use(room, sizeof room);
    sum += a;
}

__attribute__((noinline)) static unsigned growing(unsigned depth, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f) {
    _Alignas(128) char room[128];
    char *more = alloca(depth * 16 + a % 64 + 1);
    use(room, sizeof room);
    use(more, depth * 16 + 1);
    unsigned below = depth ? growing(depth - 1, f, a, b, c, d, e) : 0;
    return below + (unsigned char)room[1] + (unsigned char)more[0] + f;
}

__attribute__((noinline, force_align_arg_pointer)) static unsigned forced(unsigned depth) {
    char room[24];
    use(room, sizeof room);
    wide(depth);
    return depth ? forced(depth - 1) + (unsigned char)room[2] : 0;
}

int main(void) {
    for (unsigned i = 0;; i++) sum += growing(i % 9, 1, 2, 3, 4, 5, 6) + forced(i % 5);
}
