/* Stack traces of this program's own stack: nanoseconds for each frame, by several walkers in turn. benchmarks/backtrace.py runs it.
   The library is included: look-ups are measured with an empty cache. */
#include "../sframegen/backtrace/sframe_backtrace.c"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unwind.h>

enum { MOST = 256, ROUNDS = 15, THREADS = 8 };

static double nanoseconds(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* --- Walkers: each returns its number of frames ---------------------------------------------------------------------------------- */

static int with_sframe(void **buffer) { return sframe_backtrace(buffer, MOST); }
static int with_glibc(void **buffer) { return backtrace(buffer, MOST); }

/* libgcc's, linked, and LLVM's. */
struct unwinder {
	_Unwind_Reason_Code (*backtrace)(_Unwind_Trace_Fn, void *);
	_Unwind_Ptr (*get_ip)(struct _Unwind_Context *);
};

static const struct unwinder libgcc = { _Unwind_Backtrace, _Unwind_GetIP };
static struct unwinder llvm;

struct collected {
	const struct unwinder *unwinder;
	void **buffer;
	int count;
};

static _Unwind_Reason_Code collect(struct _Unwind_Context *context, void *argument)
{
	struct collected *collected = argument;

	if (collected->count == MOST)
		return _URC_END_OF_STACK;
	collected->buffer[collected->count++] = (void *)collected->unwinder->get_ip(context);
	return _URC_NO_REASON;
}

static int with_unwinder(const struct unwinder *unwinder, void **buffer)
{
	struct collected collected = { unwinder, buffer, 0 };

	unwinder->backtrace(collect, &collected);
	return collected.count;
}

static int with_libgcc(void **buffer) { return with_unwinder(&libgcc, buffer); }
static int with_llvm(void **buffer) { return with_unwinder(&llvm, buffer); }

/* The chain of frame pointers, which this program is compiled with; the C library's frames break it. */
static int with_frame_pointers(void **buffer)
{
	uintptr_t *frame = __builtin_frame_address(0), *next;
	int count = 0;

	for (; count < MOST; frame = next) {
		buffer[count++] = (void *)frame[1];
		next = (uintptr_t *)frame[0];
		if (next <= frame || next > frame + (1 << 16))
			break;
	}
	return count;
}

/* libunwind by its exported names, in its own scope: linked, its backtrace() would take the place of glibc's. */
static int (*unw_backtrace)(void **, int);
static int (*unw_getcontext)(void *), (*unw_init_local)(void *, void *), (*unw_step)(void *), (*unw_get_reg)(void *, int, uint64_t *);

static int with_libunwind(void **buffer) { return unw_backtrace(buffer, MOST); }

static int with_cursor(void **buffer)
{
	static __thread uint64_t cursor[256], context[256];
	int count = 0;

	unw_getcontext(context);
	unw_init_local(cursor, context);
	do {
		uint64_t pc = 0;

		unw_get_reg(cursor, 16, &pc);
		buffer[count++] = (void *)pc;
	} while (count < MOST && unw_step(cursor) > 0);
	return count;
}

static void find(void *library, const char *name, void *to)
{
	void *found = library ? dlsym(library, name) : NULL;

	memcpy(to, &found, sizeof found);
}

static void open_libraries(void)
{
	void *library = dlopen("libunwind.so.8", RTLD_NOW | RTLD_LOCAL), *of_llvm = dlopen("libunwind.so.1", RTLD_NOW | RTLD_LOCAL);

	find(of_llvm, "_Unwind_Backtrace", &llvm.backtrace);
	find(of_llvm, "_Unwind_GetIP", &llvm.get_ip);
	find(library, "unw_backtrace", &unw_backtrace);
	find(library, "_Ux86_64_getcontext", &unw_getcontext);
	find(library, "_ULx86_64_init_local", &unw_init_local);
	find(library, "_ULx86_64_step", &unw_step);
	find(library, "_ULx86_64_get_reg", &unw_get_reg);
}

struct walk_function {
	const char *name;
	int (*walk)(void **);
	int repeats;
};

static const struct walk_function walkers[] = { { "sframe_backtrace", with_sframe, 4000 }, { "backtrace", with_glibc, 100 },
	{ "_Unwind_Backtrace", with_libgcc, 100 }, { "LLVM's _Unwind_Backtrace", with_llvm, 20 }, { "unw_backtrace", with_libunwind, 2000 }, { "libunwind's cursor", with_cursor, 50 },
	{ "frame pointers", with_frame_pointers, 4000 } };

/* --- Stacks ----------------------------------------------------------------------------------------------------------------------- */

static volatile int kept;
static void (*volatile at_end)(void);

/* 64 functions of different frames, each in two places: the PCs of a deep stack are those of a program, not of one recursion. */
static void (*const functions[64])(int);
#define FUNCTION(number)                                            \
	__attribute__((noinline)) static void function_##number(int depth) \
	{                                                               \
		volatile char block[16 + (number) * 8];                     \
                                                                    \
		block[depth % 16] = 1;                                      \
		if (depth <= 1)                                             \
			at_end();                                               \
		else if (depth % 2)                                         \
			functions[(depth * 7 + (number)) % 64](depth - 1);      \
		else                                                        \
			functions[(depth * 5 + (number)) % 64](depth - 1);      \
		kept = block[depth % 16];                                   \
	}
#define FOUR(a, b, c, d) FUNCTION(a) FUNCTION(b) FUNCTION(c) FUNCTION(d)
FOUR(0, 1, 2, 3) FOUR(4, 5, 6, 7) FOUR(8, 9, 10, 11) FOUR(12, 13, 14, 15) FOUR(16, 17, 18, 19) FOUR(20, 21, 22, 23)
FOUR(24, 25, 26, 27) FOUR(28, 29, 30, 31) FOUR(32, 33, 34, 35) FOUR(36, 37, 38, 39) FOUR(40, 41, 42, 43) FOUR(44, 45, 46, 47)
FOUR(48, 49, 50, 51) FOUR(52, 53, 54, 55) FOUR(56, 57, 58, 59) FOUR(60, 61, 62, 63)
#define NAMES(a, b, c, d) function_##a, function_##b, function_##c, function_##d
static void (*const functions[64])(int) = { NAMES(0, 1, 2, 3), NAMES(4, 5, 6, 7), NAMES(8, 9, 10, 11), NAMES(12, 13, 14, 15),
	NAMES(16, 17, 18, 19), NAMES(20, 21, 22, 23), NAMES(24, 25, 26, 27), NAMES(28, 29, 30, 31), NAMES(32, 33, 34, 35),
	NAMES(36, 37, 38, 39), NAMES(40, 41, 42, 43), NAMES(44, 45, 46, 47), NAMES(48, 49, 50, 51), NAMES(52, 53, 54, 55),
	NAMES(56, 57, 58, 59), NAMES(60, 61, 62, 63) };

/* --- Measurements: a line is a name, the frames, and nanoseconds for each of them -------------------------------------------------- */

static double measure(const struct walk_function *walker, clockid_t clock, int *frames)
{
	void *buffer[MOST];
	double begin;

	*frames = walker->walk(buffer);
	begin = nanoseconds(clock);
	for (int time = 0; time < walker->repeats; time++)
		walker->walk(buffer);
	return (nanoseconds(clock) - begin) / walker->repeats / *frames;
}

static int in_order(const void *first, const void *second)
{
	return *(const double *)first < *(const double *)second ? -1 : 1;
}

static bool is_there(const struct walk_function *walker)
{
	if (walker->walk == with_llvm)
		return llvm.backtrace;
	return unw_get_reg || (walker->walk != with_libunwind && walker->walk != with_cursor);
}

static void measure_hot(void)
{
	static double taken[sizeof walkers / sizeof *walkers][ROUNDS];
	int frames[sizeof walkers / sizeof *walkers];

	for (int round = 0; round < ROUNDS; round++)
		for (size_t at = 0; at < sizeof walkers / sizeof *walkers; at++)
			if (is_there(&walkers[at]))
				taken[at][round] = measure(&walkers[at], CLOCK_MONOTONIC, &frames[at]);
	for (size_t at = 0; at < sizeof walkers / sizeof *walkers; at++) {
		qsort(taken[at], ROUNDS, sizeof(double), in_order);
		if (taken[at][ROUNDS / 2] > 0)
			printf("%s\t%d\t%.2f\n", walkers[at].name, frames[at], taken[at][ROUNDS / 2]);
	}
}

static void measure_look_ups(void)
{
	double taken[ROUNDS * 20];
	void *buffer[MOST];
	int frames = with_sframe(buffer), times = ROUNDS * 20;

	for (int time = 0; time < times; time++) {
		double begin;

		for (int frame = 0; frame < frames; frame++)
			cache[cache_index((uintptr_t)buffer[frame] - 1)].key = 0;
		begin = nanoseconds(CLOCK_MONOTONIC);
		frames = with_sframe(buffer);
		taken[time] = (nanoseconds(CLOCK_MONOTONIC) - begin) / frames;
	}
	qsort(taken, (size_t)times, sizeof(double), in_order);
	printf("first look-up\t%d\t%.2f\n", frames, taken[times / 2]);
}

static void measure_question(void)
{
	int times = 100000, readable = 0;
	double begin = nanoseconds(CLOCK_MONOTONIC);

	for (int time = 0; time < times; time++)
		readable += is_readable((uintptr_t)&times);
	printf("page\t%d\t%.2f\n", readable / times, (nanoseconds(CLOCK_MONOTONIC) - begin) / times);
}

static void measure_first(void)
{
	void *buffer[MOST];
	double begin = nanoseconds(CLOCK_MONOTONIC);
	int frames = with_sframe(buffer);

	printf("first call\t%d\t%.2f\n", frames, (nanoseconds(CLOCK_MONOTONIC) - begin) / frames);
}

static pthread_barrier_t barrier;
static __thread double own_taken;
static __thread int own_frames;

static void measure_own(void)
{
	struct walk_function longer = walkers[0];

	longer.repeats = 40000;
	own_taken = measure(&longer, CLOCK_THREAD_CPUTIME_ID, &own_frames);
}

static void *in_thread(void *argument)
{
	double *taken = argument;

	pthread_barrier_wait(&barrier);
	function_0(35);
	*taken = own_taken;
	return NULL;
}

static void measure_threads(int count)
{
	pthread_t threads[THREADS];
	double taken[THREADS];

	at_end = measure_own;
	pthread_barrier_init(&barrier, NULL, (unsigned)count);
	for (int at = 0; at < count; at++)
		pthread_create(&threads[at], NULL, in_thread, &taken[at]);
	for (int at = 0; at < count; at++)
		pthread_join(threads[at], NULL);
	qsort(taken, (size_t)count, sizeof(double), in_order);
	printf("%d threads\t35\t%.2f\n", count, taken[count / 2]);
}

int main(int count, char **words)
{
	int depth = count == 3 ? atoi(words[2]) : 0;

	if (depth < 1 || depth > 200)
		return 2;
	if (strcmp(words[1], "threads") == 0) {
		measure_threads(depth < THREADS ? depth : THREADS);
		return 0;
	}
	if (strcmp(words[1], "hot") == 0)
		open_libraries();
	if (strcmp(words[1], "cold") == 0)
		measure_question();
	at_end = strcmp(words[1], "hot") == 0 ? measure_hot : strcmp(words[1], "first") == 0 ? measure_first : measure_look_ups;
	function_0(depth);
	return 0;
}
