/* An interpreter whose operations are functions that end in a call of the next one: run has one operation above it, never two. */
#include <stdlib.h>
#include <time.h>
#define KEPT __attribute__((noinline))
#ifdef __clang__
#define NEXT(...) __attribute__((musttail)) return __VA_ARGS__
#else
#define NEXT(...) return __VA_ARGS__
#endif
struct machine { long values[16]; int returns; };
typedef long operation(struct machine *, const unsigned char *, long *, long);
static operation op_push, op_add, op_call, op_loop, op_end;
static operation *const operations[] = { op_push, op_add, op_call, op_loop, op_end };
static volatile unsigned long done;
static const unsigned char called[] = { 0, 7, 0, 9, 1, 4 }, program[] = { 0, 1, 0, 2, 1, 2, 0, 3, 1, 3 };
#define NEXT_AT(at) NEXT(operations[*(at)](m, (at), top, left))

KEPT void leaf(int turns) { for (volatile int i = 0; i < turns; i++) done++; }
KEPT long run(struct machine *m, const unsigned char *code, long left) { long value = operations[*code](m, code, m->values, left); done++; return value; }
KEPT long helper(long value) { struct machine m = { { value }, 0 }; leaf(5); long result = run(&m, called, 0); done++; return result; }
KEPT static long op_push(struct machine *m, const unsigned char *at, long *top, long left) { *++top = at[1]; NEXT_AT(at + 2); }
KEPT static long op_add(struct machine *m, const unsigned char *at, long *top, long left) { top[-1] += *top; top--; leaf(3); NEXT_AT(at + 1); }
KEPT static long op_call(struct machine *m, const unsigned char *at, long *top, long left) { *top += helper(*top); m->returns++; NEXT_AT(at + 1); }
KEPT static long op_loop(struct machine *m, const unsigned char *at, long *top, long left) { top = m->values; at = left-- ? program - 1 : at; if (left < 0) return *top; NEXT_AT(at + 1); }
KEPT static long op_end(struct machine *m, const unsigned char *at, long *top, long left) { (void)at; m->returns++; return *top + left; }

int main(int count, char **words)
{
	double seconds = count > 1 ? atof(words[1]) : 1;
	struct timespec now, begin;

	for (clock_gettime(CLOCK_MONOTONIC, &begin);;) {
		struct machine m = { { 0 }, 0 };
		done += run(&m, program, 100);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - begin.tv_sec + 1e-9 * (now.tv_nsec - begin.tv_nsec) > seconds) return 0;
	}
}
