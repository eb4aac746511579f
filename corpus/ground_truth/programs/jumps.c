/* A handler on an alternate stack, one within it there, and siglongjmp out of both. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#define KEPT __attribute__((noinline))
static volatile unsigned long done;
static unsigned char alternate[1 << 16];
static sigjmp_buf place;

KEPT void leaf(int turns) { for (volatile int i = 0; i < turns; i++) done++; }
KEPT void deep(int depth) { if (depth) deep(depth - 1); else leaf(90); done++; }
KEPT void leaves(int n) { leaf(40); if (n % 3) siglongjmp(place, 1); done++; }
KEPT void inner(int number) { leaf(100000 + number); leaves((int)done); done++; }
KEPT void inside(int number) { leaf(100000 + number); if (done % 2) raise(SIGUSR1); done++; }
KEPT void outer(int number) { inside(number); done++; }
KEPT void attempts(int n) { if (sigsetjmp(place, 1) == 0) deep(n % 20); leaf(20); done++; }

int main(int count, char **words)
{
	double seconds = count > 1 ? atof(words[1]) : 1;
	struct itimerval timer = { { 0, 1500 }, { 0, 1500 } };
	struct sigaction first = { .sa_handler = outer, .sa_flags = SA_ONSTACK }, second = { .sa_handler = inner, .sa_flags = SA_ONSTACK };
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
	struct timespec now, begin;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	sigaltstack(&stack, 0);
	sigaction(SIGUSR1, &second, 0);
	sigaction(SIGALRM, &first, 0);
	attempts(0);
	setitimer(ITIMER_REAL, &timer, 0);
	for (int n = 0;; n++) {
		attempts(n);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - begin.tv_sec + 1e-9 * (now.tv_nsec - begin.tv_nsec) > seconds) return 0;
	}
}
