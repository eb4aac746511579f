/* Goes down and up again, 250,000 calls deep, on a stack of its own. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#define KEPT __attribute__((noinline))
enum { DEPTH = 250000 };
static volatile unsigned long done;
static double seconds = 1;

KEPT void bottom(void)
{
	struct timespec now, begin;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	do {
		for (int i = 0; i < 1000; i++) done++;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - begin.tv_sec + 1e-9 * (now.tv_nsec - begin.tv_nsec) < seconds);
}
KEPT void odd(int depth);
KEPT void even(int depth) { volatile char room[24]; room[depth % 24] = 1; if (depth) odd(depth - 1); else bottom(); done += room[0]; }
KEPT void odd(int depth) { even(depth - 1); done++; }
KEPT void *in_thread(void *unused) { even(DEPTH); done++; return unused; }

int main(int count, char **words)
{
	pthread_attr_t attributes;
	pthread_t thread;

	if (count > 1) seconds = atof(words[1]);
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 1 << 27);
	return pthread_create(&thread, &attributes, in_thread, 0) || pthread_join(thread, 0);
}
