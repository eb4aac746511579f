/* SIGPROF at 10,000 Hz in threads that allocate, load and unload libraries, throw and print. Each handler walks the stack, and
   libgcc walks it in every 16th. It ends after SECONDS, or later, when there are enough walks. storm SECONDS THREADS LIBRARY LIBRARY */
#include "compare.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/syscall.h>
#include <time.h>
#include <vector>

enum { MOST_THREADS = 64, ENOUGH = 5000 /* walks */ };

static int over;
static long walks, bad_ends[6];
static char **libraries;
static uintptr_t unknown[16]; /* where walks ended without a rule */

static __thread struct place *own;
static __thread int calls;

static void walk(struct place *place, void *context) {
#ifdef __SANITIZE_THREAD__
	context = NULL; /* it calls handlers later, when what was interrupted has gone on, and its libraries may be gone: the handler's own stack */
#endif
	errno = 4711;
	place->count = sframe_backtrace_frames(context, place->mine, MOST, &place->end);
	__atomic_fetch_add(&walks, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&bad_ends[place->end], 1, __ATOMIC_RELAXED);
	if (errno != 4711)
		__atomic_fetch_add(&differing, 1, __ATOMIC_RELAXED);
	if (place->end != SFRAME_OUTERMOST)
		__atomic_store_n(&unknown[calls++ % 16], (uintptr_t)place->mine[place->count - 1].pc, __ATOMIC_RELAXED);
	if (context && can_be_compared(place) && calls++ % 16 == 0)
		compare_place(place, 1);
}

static void handle(int number, siginfo_t *info, void *context) {
	int before = errno;
	(void)number;
	(void)info;
	if (own)
		walk(own, context);
	errno = before;
}

__attribute__((noinline)) static int throws(int depth) {
	std::string text(depth * 10 + 1, 'x');
	if (depth == 0)
		return static_cast<int>(std::vector<int>(3).at(7));
	return throws(depth - 1) + static_cast<int>(text.size());
}

static int nothing(void) { return sframe_backtrace(NULL, 0); }

static void load_library(int round) {
	void *library = dlopen(libraries[round % 2], RTLD_NOW | RTLD_LOCAL);
	int (*through)(int (*)(void)) = library ? (int (*)(int (*)(void)))dlsym(library, "through") : NULL;
	for (int times = 0; through && times < 1000; times++)
		through(nothing);
	if (library)
		dlclose(library);
}

static void *work(void *argument) {
	struct sigevent event;
	struct itimerspec each;
	timer_t timer;
	FILE *sink = fopen("/dev/null", "w");
	long number = (long)argument;
	own = new place();
	memset(&event, 0, sizeof event);
	event.sigev_notify = SIGEV_THREAD_ID;
	event.sigev_signo = SIGPROF;
	event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
	memset(&each, 0, sizeof each);
	each.it_value.tv_nsec = each.it_interval.tv_nsec = 100000;
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &each, NULL);
	for (int round = 0; !__atomic_load_n(&over, __ATOMIC_RELAXED); round++) {
		std::vector<std::string> texts;
		for (int at = 0; at < 50; at++)
			texts.push_back(std::string(static_cast<size_t>(at * 7 + 1), 'a'));
		try {
			throws(round % 20);
		} catch (const std::out_of_range &) {
			fprintf(sink, "%s %d %f\n", texts.back().c_str(), round, round / 3.0);
		}
		if (number % 4 == 0)
			load_library(round);
	}
	timer_delete(timer);
	fclose(sink);
	return NULL;
}

int main(int count, char **words) {
	int seconds = count >= 5 ? atoi(words[1]) : 0, threads = count >= 5 ? atoi(words[2]) : 0;
	pthread_t all[MOST_THREADS];
	struct sigaction action;
	struct timespec rest = { seconds, 0 };
	if (threads < 1 || threads > MOST_THREADS)
		return 2;
	libraries = words + 3;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = handle;
	action.sa_flags = SA_SIGINFO | SA_RESTART;
	sigaction(SIGPROF, &action, NULL);
	for (long at = 0; at < threads; at++)
		pthread_create(&all[at], NULL, work, (void *)at);
	while (nanosleep(&rest, &rest) && errno == EINTR)
		continue;
	while (__atomic_load_n(&walks, __ATOMIC_RELAXED) < ENOUGH)
		usleep(10000);
	__atomic_store_n(&over, 1, __ATOMIC_RELAXED);
	for (int at = 0; at < threads; at++)
		pthread_join(all[at], NULL);
	for (int at = 0; at < 16 && count > 5; at++) {
		Dl_info info;
		if (unknown[at] && dladdr((void *)unknown[at], &info))
			fprintf(stderr, "no rule: %s+%#lx\n", info.dli_fname, (long)(unknown[at] - (uintptr_t)info.dli_fbase));
	}
	printf("%ld walks; ends:", walks);
	for (int end = 0; end < 6; end++)
		printf(" %ld", bad_ends[end]);
	printf("; ");
	return finish();
}
