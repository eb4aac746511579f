// Threads that wait in known ways. Each prints: name, its number, nanoseconds that passed, CPU time by its clock, and by the scheduler:
// time on a CPU, and time that it could have run and did not. Arguments: seconds, a file on a disk.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline, noclone))

static volatile long after; // changes after calls, so that they do not become jumps
static long long length;
static const char *file;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int ends[2];

static long long now(int clock)
{
	struct timespec at;
	clock_gettime(clock, &at);
	return at.tv_sec * 1000000000ll + at.tv_nsec;
}

static void pause_us(int us)
{
	struct timespec time = {0, us * 1000l};
	nanosleep(&time, 0);
}

static void work(long rounds)
{
	for (long i = 0; i < rounds; i++)
		after++;
}

KEPT void sleeps(long long until)
{
	while (now(CLOCK_MONOTONIC) < until) {
		pause_us(10000);
		work(100000);
	}
	after++;
}

KEPT void locks(long long until)
{
	while (now(CLOCK_MONOTONIC) < until) {
		pthread_mutex_lock(&mutex);
		work(1000000);
		pthread_mutex_unlock(&mutex);
		sched_yield();
	}
	after++;
}

KEPT void reads(long long until)
{
	char byte;
	while (now(CLOCK_MONOTONIC) < until)
		if (read(ends[0], &byte, 1) != 1)
			_exit(9);
	after++;
}

KEPT void writes(long long until)
{
	while (now(CLOCK_MONOTONIC) < until + 10000000) {
		pause_us(1000);
		if (write(ends[1], "", 1) != 1)
			_exit(9);
	}
	after++;
}

KEPT void syncs(long long until)
{
	int descriptor = open(file, O_CREAT | O_WRONLY, 0600);
	for (long i = 0; now(CLOCK_MONOTONIC) < until; i++)
		if (pwrite(descriptor, "x", 1, i) != 1 || fsync(descriptor))
			_exit(9);
	after++;
}

KEPT void competes(long long until)
{
	while (now(CLOCK_MONOTONIC) < until)
		work(100000);
	after++;
}

struct kind {
	const char *name;
	void (*run)(long long until);
	int one_cpu;
};

static void statistics(long long found[2])
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", syscall(SYS_gettid));
	FILE *stream = fopen(path, "r");
	if (!stream || fscanf(stream, "%lld %lld", &found[0], &found[1]) != 2)
		exit(9);
	fclose(stream);
}

static void *measured(void *data)
{
	struct kind *kind = data;
	long long before[2], then[2];
	if (kind->one_cpu) {
		cpu_set_t one;
		CPU_ZERO(&one);
		CPU_SET(0, &one);
		sched_setaffinity(0, sizeof one, &one);
	}
	statistics(before);
	long long begin = now(CLOCK_MONOTONIC), used = now(CLOCK_THREAD_CPUTIME_ID);
	kind->run(begin + length);
	long long passed = now(CLOCK_MONOTONIC) - begin;
	used = now(CLOCK_THREAD_CPUTIME_ID) - used;
	statistics(then);
	printf("%s %ld %lld %lld %lld %lld\n", kind->name, syscall(SYS_gettid), passed, used, then[0] - before[0], then[1] - before[1]);
	return 0;
}

int main(int count, char **words)
{
	struct kind kinds[] = {{"sleeps", sleeps, 0}, {"locks", locks, 0}, {"locks", locks, 0}, {"reads", reads, 0},
		{"writes", writes, 0}, {"syncs", syncs, 0}, {"competes", competes, 1}, {"competes", competes, 1}};
	enum { THREADS = sizeof kinds / sizeof *kinds };
	pthread_t threads[THREADS];
	if (count != 3 || pipe(ends))
		return 9;
	length = atof(words[1]) * 1e9;
	file = words[2];
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], 0, measured, &kinds[i]);
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], 0);
}
