/* libsframe's look-up of many PCs: `find` is its sframe_find_fre, `entry` has room for its result. Returns nanoseconds. */
#include <stdint.h>
#include <time.h>

int64_t look_up(int (*find)(void *, int64_t, void *), void *decoder, const int64_t *pcs, int64_t count, void *entry, int64_t *found)
{
    struct timespec begin, end;
    int64_t hits = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int64_t i = 0; i < count; i++)
        hits += find(decoder, pcs[i], entry) == 0;
    clock_gettime(CLOCK_MONOTONIC, &end);
    *found = hits;
    return (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec;
}
