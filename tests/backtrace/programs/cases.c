/* Stacks of every kind, each compared with libgcc's; C and C++. */
#include "compare.h"

#include <alloca.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define CASE __attribute__((noinline)) static

static volatile int kept; /* a store after a call: no call is a jump */

CASE int recursive(int depth) {
	int wrong = depth ? recursive(depth - 1) : compare();
	kept = depth;
	return wrong;
}

static int in_order(const void *first, const void *second) {
	static int calls;
	if (calls++ < 3)
		recursive(5);
	return *(const int *)first - *(const int *)second;
}

CASE void sorts(void) {
	int numbers[] = { 5, 4, 3, 2, 1, 9, 8, 7 };
	qsort(numbers, 8, sizeof *numbers, in_order);
	kept = numbers[0];
}

CASE void allocates(int size) {
	volatile char *block = (volatile char *)alloca((size_t)size);
	block[0] = 1;
	recursive(3);
	kept = block[0];
}

CASE void realigned(int number) {
	volatile int aligned[16] __attribute__((aligned(128)));
	aligned[number % 16] = number;
	if (number)
		realigned(number - 1);
	else
		recursive(3);
	kept = aligned[number % 16];
}

/* A realigned frame with a frame of variable size: the CFA is *(FP - 8) or so. */
CASE void realigned_and_allocates(int number) {
	volatile int aligned[16] __attribute__((aligned(64)));
	volatile char *block = (volatile char *)alloca((size_t)number + 1);
	block[number] = 1;
	aligned[number % 16] = number;
	recursive(3);
	kept = aligned[number % 16] + block[number];
}

CASE void large_frame(int number) {
	volatile char block[300000];
	block[number] = block[299999 - number] = 1;
	recursive(3);
	kept = block[number];
}

static void handle(int number, siginfo_t *info, void *context) {
	(void)info;
	compare_interrupted(&comparison, context);
	recursive(4);
	if (number == SIGUSR1)
		raise(SIGUSR2); /* nested, on the other stack */
}

CASE void signals(void) {
	static char other[1 << 17];
	stack_t stack;
	struct sigaction action;
	memset(&stack, 0, sizeof stack);
	stack.ss_sp = other;
	stack.ss_size = sizeof other;
	sigaltstack(&stack, NULL);
	memset(&action, 0, sizeof action);
	action.sa_sigaction = handle;
	action.sa_flags = SA_SIGINFO;
	sigaction(SIGUSR1, &action, NULL);
	action.sa_flags |= SA_ONSTACK;
	sigaction(SIGUSR2, &action, NULL);
	raise(SIGUSR1);
	raise(SIGUSR2);
	realigned(3);
}

/* A fault at an exact place: the first instruction of a function, and in the middle of one. */
static void *volatile fault_at;
static void on_fault(int number, siginfo_t *info, void *context) {
	(void)number;
	(void)info;
	compare_interrupted(&comparison, context);
	mprotect(fault_at, 4096, PROT_READ | PROT_WRITE);
}

CASE void faults(void) {
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = on_fault;
	action.sa_flags = SA_SIGINFO | SA_ONSTACK;
	sigaction(SIGSEGV, &action, NULL);
	fault_at = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*(volatile char *)fault_at = 1;
	mprotect(fault_at, 4096, PROT_NONE);
	memset(fault_at, 2, 4096);
	signal(SIGSEGV, SIG_DFL);
}

static void *in_thread(void *argument) {
	struct place *place = (struct place *)malloc(sizeof *place);
	(void)argument;
	for (int round = 0; round < 3; round++)
		compare_in(place);
	free(place);
	return NULL;
}

CASE void threads(void) {
	for (int round = 0; round < 20; round++) {
		pthread_t all[8];
		for (int at = 0; at < 8; at++)
			pthread_create(&all[at], NULL, in_thread, NULL);
		for (int at = 0; at < 8; at++)
			pthread_join(all[at], NULL);
	}
}

CASE int child_of_vfork(void) {
	int child = vfork(), status = 0;
	if (child == 0) {
		int wrong = recursive(3);
		_exit(wrong);
	}
	waitpid(child, &status, 0);
	return status;
}

CASE void forks(void) {
	int child = fork(), status = 0;
	if (child == 0)
		_exit(recursive(10));
	waitpid(child, &status, 0);
	if (status != 0 || child_of_vfork() != 0)
		__atomic_fetch_add(&differing, 1, __ATOMIC_RELAXED);
	recursive(3);
}

#ifdef __GLIBC__
static ucontext_t back, there;
static void in_coroutine(void) {
	for (int round = 0; round < 3; round++) {
		recursive(round * 300);
		swapcontext(&there, &back);
	}
}

CASE void coroutines(void) {
	for (int round = 0; round < 3; round++) {
		size_t size = 1 << 18;
		char *stack = (char *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		getcontext(&there);
		there.uc_stack.ss_sp = stack;
		there.uc_stack.ss_size = size;
		there.uc_link = &back;
		makecontext(&there, in_coroutine, 0);
		for (int at = 0; at < 4; at++) {
			swapcontext(&back, &there);
			recursive(2);
		}
		munmap(stack, size);
	}
}
#else
CASE void coroutines(void) {} /* musl has no makecontext */
#endif

CASE void is_full(void) {
	struct sframe_frame frames[3];
	void *pcs[3];
	enum sframe_end end = SFRAME_OUTERMOST;
	int count = sframe_backtrace_frames(NULL, frames, 2, &end);
	if (count != 2 || end != SFRAME_FULL || sframe_backtrace(pcs, 0) != 0 || sframe_backtrace(pcs, -1) != 0)
		__atomic_fetch_add(&differing, 1, __ATOMIC_RELAXED);
	if (sframe_backtrace(pcs, 2) != 2 || (char *)pcs[0] - (char *)is_full > 4096)
		__atomic_fetch_add(&differing, 1, __ATOMIC_RELAXED);
}

__attribute__((constructor)) static void before_main(void) {
	if (getenv("SFRAMEGEN_PATH")) {
		sframe_backtrace(NULL, 0);
		fprintf(stderr, "%d detached\n", sframe_backtrace_prepare(0));
	}
	if (getenv("ONLY_PREPARE"))
		_exit(0);
	recursive(3);
}

/* Code of the dynamic loader calls it, which need not have a section. */
__attribute__((destructor)) static void after_main(void) {
	if (getenv("WITHOUT_LOADER"))
		return;
	recursive(3);
	printf("destructor: ");
	if (finish())
		_exit(3);
}

#ifdef __cplusplus
#include <stdexcept>
#include <string>
#include <vector>

struct Guard {
	~Guard() { recursive(3); }
};

CASE int throws(int depth) {
	Guard guard;
	if (depth == 0)
		return (int)std::vector<int>(3).at(7);
	return throws(depth - 1) + 1;
}

CASE void exceptions(void) {
	for (int round = 0; round < 10; round++) {
		try {
			throws(round);
		} catch (const std::out_of_range &) {
			recursive(3);
		}
	}
}
#else
CASE void exceptions(void) {}
#endif

int main(int count, char **words) {
	(void)words;
	recursive(2);
	sorts();
	allocates(count * 1000);
	realigned(3);
#ifndef OUTERMOST_UNCOVERED /* version 2 cannot say where its caller is */
	realigned_and_allocates(count * 100);
#endif
	large_frame(count);
	signals();
#ifndef IN_VALGRIND /* it reports faults, and has a small stack */
	faults();
#endif
	threads();
	forks();
	coroutines();
	is_full();
	exceptions();
#ifndef IN_VALGRIND
	recursive(10000);
#endif
	recursive(10);
	return finish();
}
