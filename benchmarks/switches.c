// Two processes on one CPU that wake each other as often as they can: usage: switches SECONDS DEPTH CPU. Prints `here`, waits for a line,
// and prints the switches per second. With frame pointers, for profilers that need them.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))

static volatile long after; // changes after calls, so that they do not become jumps
static int in, out, first;
static double seconds;

static double now(void)
{
	struct timespec at;
	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec + at.tv_nsec / 1e9;
}

KEPT void play(void)
{
	char ball = 0;
	long rounds = 0;
	double end = now() + seconds;
	if (first && write(out, &ball, 1) != 1)
		_exit(9);
	while (read(in, &ball, 1) == 1) {
		rounds++;
		if (write(out, &ball, 1) != 1 || (first && rounds % 256 == 0 && now() >= end))
			break;
	}
	if (first)
		printf("%.0f\n", 2 * rounds / (now() - end + seconds));
	after++;
}

KEPT void down(int depth)
{
	if (depth)
		down(depth - 1);
	else
		play();
	after++;
}

int main(int count, char **words)
{
	int there[2], back[2];
	cpu_set_t one;
	if (count != 4 || pipe(there) || pipe(back))
		return 9;
	seconds = atof(words[1]);
	CPU_ZERO(&one);
	CPU_SET(atoi(words[3]), &one);
	sched_setaffinity(0, sizeof one, &one);
	signal(SIGPIPE, SIG_IGN);
	puts("here");
	fflush(stdout);
	getchar();
	first = fork() != 0;
	in = first ? there[0] : back[0];
	out = first ? back[1] : there[1];
	close(first ? there[1] : there[0]);
	close(first ? back[0] : back[1]);
	down(atoi(words[2]));
}
