// Works for ever in `spin`, below a stack that the first argument names. All except `spin` and what it calls stays the same.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KEPT __attribute__((noinline, noclone))
static volatile long after; // changes after calls, so that they do not become jumps
static int asks_the_time;

KEPT void spin(void)
{
	struct timespec now;
	if (write(1, "here\n", 5) != 5)
		_exit(9);
	for (;;) {
		after++;
		if (asks_the_time)
			clock_gettime(CLOCK_MONOTONIC, &now);
	}
}

KEPT void down(int depth)
{
	if (depth)
		down(depth - 1);
	else
		spin();
	after++;
}

KEPT void handler(int number)
{
	down(5);
	after += number;
}

static int compare(const void *left, const void *right)
{
	if (after++ == 20)
		raise(SIGUSR1);
	return *(const int *)left - *(const int *)right;
}

int main(int count, char **words)
{
	int numbers[99];
	if (count != 2)
		return 2;
	if (!strcmp(words[1], "signal")) {
		stack_t other = {.ss_sp = malloc(65536), .ss_size = 65536};
		struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
		sigaltstack(&other, 0);
		sigaction(SIGUSR1, &action, 0);
		for (int i = 0; i < 99; i++)
			numbers[i] = i * 7919 % 99;
		qsort(numbers, 99, sizeof *numbers, compare);
	}
	asks_the_time = !strcmp(words[1], "time");
	down(40);
}
