/* restless SECONDS FOLDER KIND...: does what makes a process hard to follow. Each function is called from one place only, so that its name
   says what the stack is: truth.py has all chains. A kind may be given again: each runs in a process of its own. */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))
#define PLUGINS 4

typedef void work_function(int rounds);

static volatile unsigned sum;
static double end;
static const char *folder;
extern char **environ;

static int is_over(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9 >= end;
}

/* Three functions that call each other, with frames of different kinds */
#define WORK(name)                                                                \
	APART static void name##_inner(int rounds)                                \
	{                                                                         \
		volatile char room[24];                                           \
		for (int round = 0; round < rounds; round++) {                    \
			room[round % sizeof(room)] = (char)round;                 \
			sum += room[0];                                           \
		}                                                                 \
	}                                                                         \
	APART static void name##_middle(int rounds)                               \
	{                                                                         \
		volatile char *room = __builtin_alloca(16 + (rounds & 63) * 16);  \
		room[0] = 1;                                                      \
		name##_inner(rounds);                                             \
		sum += room[0];                                                   \
	}                                                                         \
	APART static void name##_outer(int rounds)                                \
	{                                                                         \
		volatile char room[40];                                           \
		room[0] = 1;                                                      \
		name##_middle(rounds);                                            \
		sum += room[0];                                                   \
	}

WORK(busy)
WORK(forked)
WORK(between)
WORK(threaded)
WORK(p1)
WORK(p2)
WORK(p3)
WORK(p4)

static work_function *const work_of[PLUGINS] = {p1_outer, p2_outer, p3_outer, p4_outer};

APART static void do_busy(void)
{
	while (!is_over())
		busy_outer(20000);
}

APART static void in_child(void)
{
	forked_outer(200000);
	sum++;
}

APART static void do_fork(void)
{
	while (!is_over()) {
		pid_t child = fork();

		if (child == 0) {
			in_child();
			_exit(0);
		}
		between_outer(20000);
		waitpid(child, NULL, 0);
	}
}

APART static void do_exec(void)
{
	char dynamic[PATH_MAX], fixed[PATH_MAX];
	int turn = 0;

	snprintf(dynamic, sizeof(dynamic), "%s/executed", folder);
	snprintf(fixed, sizeof(fixed), "%s/executed-static", folder);
	while (!is_over()) {
		char *path = turn++ & 1 ? fixed : dynamic;
		pid_t child = fork();

		if (child == 0) {
			execl(path, path, NULL);
			_exit(1);
		}
		waitpid(child, NULL, 0);
	}
}

APART static void do_spawn(void)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/executed", folder);
	while (!is_over()) {
		char *arguments[] = {path, NULL};
		pid_t child;

		if (posix_spawn(&child, path, NULL, NULL, arguments, environ) == 0)
			waitpid(child, NULL, 0);
		child = vfork();
		if (child == 0) {
			execve(path, arguments, environ);
			_exit(1);
		}
		waitpid(child, NULL, 0);
	}
}

APART static void use_plugin(void *plugin, int number)
{
	char name[16];
	void (*enter)(work_function *, int);

	snprintf(name, sizeof(name), "p%d_enter", number);
	enter = (void (*)(work_function *, int))dlsym(plugin, name);
	enter(work_of[number - 1], 30000);
	sum++;
}

APART static void do_plugins(void)
{
	unsigned seed = 1;

	while (!is_over()) {
		char path[PATH_MAX];
		int number = 1 + rand_r(&seed) % PLUGINS;
		void *plugin;

		snprintf(path, sizeof(path), "%s/plugin%d.so", folder, number);
		plugin = dlopen(path, RTLD_NOW);
		if (!plugin)
			abort();
		use_plugin(plugin, number);
		dlclose(plugin);
	}
}

APART static void *in_thread(void *argument)
{
	threaded_outer(100000);
	sum++;
	return argument;
}

APART static void do_threads(void)
{
	while (!is_over()) {
		pthread_t threads[4];

		for (int number = 0; number < 4; number++)
			if (pthread_create(&threads[number], NULL, in_thread, NULL))
				abort();
		for (int number = 0; number < 4; number++)
			pthread_join(threads[number], NULL);
	}
}

static const struct {
	const char *name;
	void (*run)(void);
} kinds[] = {{"busy", do_busy}, {"fork", do_fork}, {"exec", do_exec}, {"spawn", do_spawn}, {"plugins", do_plugins}, {"threads", do_threads}};

APART static void run(const char *name)
{
	for (size_t number = 0; number < sizeof(kinds) / sizeof(kinds[0]); number++)
		if (!strcmp(name, kinds[number].name)) {
			kinds[number].run();
			sum++;
		}
}

int main(int count, char **arguments)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec + now.tv_nsec * 1e-9 + atof(arguments[1]);
	folder = arguments[2];
	for (int number = 3; number < count; number++)
		if (fork() == 0) {
			run(arguments[number]);
			sum++;
			_exit(0);
		}
	while (wait(NULL) > 0)
		;
	return 0;
}
