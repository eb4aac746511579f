/* Takes traces with everything that the preload object answers, and compares each with that of the function behind it. Argument: the
   depth. Ends with status 0 if all are equal. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unwind.h>

enum { MOST = 4000 };

struct asked {
	void *ip;
	unsigned long cfa, region;
	int is_exact;
};

struct trace {
	struct asked frames[MOST];
	int count;
};

typedef _Unwind_Reason_Code unwind_function(_Unwind_Trace_Fn, void *);

static struct trace ours, theirs;
static int differences, compared;

static _Unwind_Reason_Code visit(struct _Unwind_Context *context, void *argument) {
	struct trace *trace = argument;
	struct asked *frame = &trace->frames[trace->count++];
	frame->ip = (void *)_Unwind_GetIPInfo(context, &frame->is_exact);
	frame->cfa = _Unwind_GetCFA(context);
	frame->region = frame->ip ? _Unwind_GetRegionStart(context) : 0;
	if ((void *)_Unwind_GetIP(context) != frame->ip || _Unwind_GetLanguageSpecificData(context) == context)
		differences++;
	return _URC_NO_REASON;
}

static void differ(const char *what, int number, void *one, void *other) {
	printf("%s, frame %d: %p, and behind it %p\n", what, number, one, other);
	differences++;
}

/* The first frame is this function's own, at two places in it. */
__attribute__((noinline)) static void compare(int size) {
	static int (*behind)(void **, int);
	static unwind_function *unwind_behind;
	static void *buffer[MOST], *expected[MOST];
	int length, wanted;
	if (!behind) {
		*(void **)&behind = dlsym(dlopen("libc.so.6", RTLD_LAZY), "backtrace");
		*(void **)&unwind_behind = dlsym(dlopen("libgcc_s.so.1", RTLD_LAZY), "_Unwind_Backtrace");
	}
	length = backtrace(buffer, size);
	wanted = behind(expected, size);
	if (length != wanted)
		differ("length of backtrace", size, (void *)(long)length, (void *)(long)wanted);
	for (int number = 1; number < length && number < wanted; number++)
		if (buffer[number] != expected[number])
			differ("backtrace", number, buffer[number], expected[number]);
	ours.count = theirs.count = 0;
	if (_Unwind_Backtrace(visit, &ours) != unwind_behind(visit, &theirs) || ours.count != theirs.count)
		differ("length of _Unwind_Backtrace", 0, (void *)(long)ours.count, (void *)(long)theirs.count);
	for (int number = 0; number < ours.count && number < theirs.count; number++) {
		struct asked *one = &ours.frames[number], *other = &theirs.frames[number];
		if (number && one->ip != other->ip)
			differ("IP", number, one->ip, other->ip);
		/* Of the outermost frame's caller, and of a frame that a signal interrupted, it means what the unwinder wants. */
		if (one->ip && !one->is_exact && one->cfa != other->cfa)
			differ("CFA", number, (void *)one->cfa, (void *)other->cfa);
		if (one->is_exact != other->is_exact)
			differ("exact", number, one->ip, other->ip);
		/* The code that a signal handler returns to is no function: libgcc says the one before. */
		if (one->region != other->region && !(one + 1)->is_exact)
			differ("region", number, (void *)one->region, (void *)other->region);
	}
	compared += length;
}

static int in_qsort(const void *one, const void *other) {
	compare(MOST);
	compare(5);
	return *(const int *)one - *(const int *)other;
}

__attribute__((noinline)) static void sort(void) {
	int numbers[] = { 3, 1, 2 };
	qsort(numbers, 3, sizeof *numbers, in_qsort);
}

static void handle(int number) {
	(void)number;
	sort();
}

__attribute__((noinline)) static void descend(int depth) {
	if (depth > 0) {
		descend(depth - 1);
		__asm__ volatile(""); /* so that this is no jump */
	} else {
		sort();
		raise(SIGUSR1);
	}
}

int main(int count, char **words) {
	signal(SIGUSR1, handle);
	descend(count > 1 ? atoi(words[1]) : 5);
	printf("%d frames, %d differences\n", compared, differences);
	return differences != 0;
}
