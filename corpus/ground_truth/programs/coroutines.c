/* Two coroutines and main take turns, on three stacks. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#define KEPT __attribute__((noinline))
enum { STACK = 1 << 16 };
static volatile unsigned long done;
static volatile int is_over;
static ucontext_t contexts[3];

KEPT void spin(void) { for (volatile int i = 0; i < 300; i++) done++; }
KEPT void give_way(int from, int to) { spin(); swapcontext(&contexts[from], &contexts[to]); done++; }
KEPT void ping_inner(void) { spin(); give_way(1, 2); done++; }
KEPT void ping(void) { for (;;) { ping_inner(); done++; } }
KEPT void pong_inner(int depth) { if (depth) pong_inner(depth - 1); else give_way(2, 0); done++; }
KEPT void pong(void) { for (;;) { pong_inner(3); done++; } }
KEPT void turn(void) { give_way(0, 1); spin(); done++; }

int main(int count, char **words)
{
	double seconds = count > 1 ? atof(words[1]) : 1;
	struct timespec now, begin;
	void (*bodies[])(void) = { 0, ping, pong };

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int i = 1; i < 3; i++) {
		getcontext(&contexts[i]);
		contexts[i].uc_stack.ss_sp = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		contexts[i].uc_stack.ss_size = STACK;
		makecontext(&contexts[i], bodies[i], 0);
	}
	while (!is_over) {
		turn();
		clock_gettime(CLOCK_MONOTONIC, &now);
		is_over = now.tv_sec - begin.tv_sec + 1e-9 * (now.tv_nsec - begin.tv_nsec) > seconds;
	}
	return 0;
}
