/* Calls of all kinds until the time is over: subjects.py says who calls whom. Each function has code after its calls. */
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))
#ifdef __clang__
#undef KEPT
#define KEPT __attribute__((noinline))
#endif
static volatile unsigned long done;
static volatile int is_over;
static unsigned char alternate[1 << 16];

KEPT void leaf(int turns) { for (volatile int i = 0; i < turns; i++) done++; }
KEPT void deep(int depth) { if (depth) deep(depth - 1); else leaf(50); done++; }
KEPT void wide(int bytes) { char *room = alloca(bytes); memset(room, 1, bytes); leaf(room[bytes / 2]); done += room[0]; }
KEPT void aligned(int turns) { volatile char room[64] __attribute__((aligned(64))); room[turns & 63] = 1; wide(turns); done += room[0]; }
KEPT int compare(const void *a, const void *b) { done++; return *(const int *)a - *(const int *)b; }
KEPT void sorts(void)
{
	int numbers[200];
	for (int i = 0; i < 200; i++) numbers[i] = (i * 7919) % 1009;
	qsort(numbers, 200, sizeof *numbers, compare);
	done += numbers[0];
}
KEPT double many(int a, int b, int c, int d, int e, int f, int g, int h, double x) { leaf(a); return x + a + b + c + d + e + f + g + h; }
KEPT void one_kind(int n) { leaf(n); done++; }
KEPT void other_kind(int n) { deep(n % 7); done++; }
static void (*volatile kinds[])(int) = { one_kind, other_kind, aligned };
KEPT void by_pointer(int n) { kinds[n % 3](n % 90 + 10); done++; }
KEPT void inside(int number) { done += number; leaf(20); done++; }
KEPT void handler(int number) { inside(number); done++; }
KEPT void work(int n) { by_pointer(n); if (n % 16 == 0) sorts(); done += many(n % 40, 2, 3, 4, 5, 6, 7, 8, .5); }
KEPT void *in_thread(void *unused) { for (int n = 0; !is_over; n++) work(n); done++; return unused; }

int main(int count, char **words)
{
	double seconds = count > 1 ? atof(words[1]) : 1;
	struct itimerval timer = { { 0, 1500 }, { 0, 1500 } };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART };
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
	struct timespec now, begin;
	pthread_t thread;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	sigaltstack(&stack, 0);
	sigaction(SIGALRM, &action, 0);
	setitimer(ITIMER_REAL, &timer, 0);
	pthread_create(&thread, 0, in_thread, 0);
	for (int n = 0; !is_over; n++) {
		work(n);
		clock_gettime(CLOCK_MONOTONIC, &now);
		is_over = now.tv_sec - begin.tv_sec + 1e-9 * (now.tv_nsec - begin.tv_nsec) > seconds;
	}
	pthread_join(thread, 0);
	return 0;
}
