/* Frames of this library and of libgcc, compared: what the programs here share. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#include "sframe_backtrace.h"

enum { MOST = 16384 };
struct other_frame {
	uintptr_t pc, cfa;
	int exact;
};
/* What is compared at a time: for each thread its own. */
struct place {
	struct sframe_frame mine[MOST];
	struct other_frame other[MOST];
	void *plain[MOST];
	int count, other_count;
	enum sframe_end end;
};

static struct place comparison;
static long compared, differing;

static _Unwind_Reason_Code take_other(struct _Unwind_Context *context, void *argument) {
	struct place *place = (struct place *)argument;
	int exact = 0;
	uintptr_t pc = _Unwind_GetIPInfo(context, &exact);
	if (place->other_count == MOST || pc == 0)
		return _URC_END_OF_STACK;
	place->other[place->other_count].pc = pc;
	place->other[place->other_count].cfa = _Unwind_GetCFA(context);
	place->other[place->other_count++].exact = exact;
	return _URC_NO_REASON;
}

static void say_frames(const struct sframe_frame *mine, int count, const struct other_frame *other, int other_count, enum sframe_end end) {
	if (__atomic_fetch_add(&differing, 1, __ATOMIC_RELAXED) > 2)
		return;
	fprintf(stderr, "%d frames, %d of libgcc; end: %s\n", count, other_count, sframe_end_text(end));
	for (int at = 0; at < count || at < other_count; at++)
		if (at < 8)
			fprintf(stderr, "  %2d %12p %12p %u | %12lx %12lx %d\n", at, at < count ? mine[at].pc : NULL, at < count ? mine[at].cfa : NULL,
				at < count ? mine[at].flags : 0, at < other_count ? (long)other[at].pc : 0, at < other_count ? (long)other[at].cfa : 0,
				at < other_count ? other[at].exact : 0);
}

/* `first`: the first frame whose PC has to be the same; libgcc's CFA of a frame is that of the frame before. */
static int differ(const struct sframe_frame *mine, int count, const struct other_frame *other, int other_count, int first, enum sframe_end end) {
#if defined(WITHOUT_CFI) /* the C library has none: both stop there, or frame pointers lead on */
	int wrong = (end != SFRAME_OUTERMOST && end != SFRAME_NO_RULE) || count < other_count;
	count = other_count;
#else
#if defined(OUTERMOST_UNCOVERED) /* as in version 2 */
	int wrong = (end != SFRAME_OUTERMOST && end != SFRAME_NO_RULE) || count != other_count;
#else
	int wrong = end != SFRAME_OUTERMOST || count != other_count;
#endif
	/* Code that nothing describes, where a coroutine begins in some C libraries: libgcc stops before it, and does not show it. */
	if (end == SFRAME_NO_RULE && count == other_count + 1 && !mine[count - 1].cfa) {
		wrong = 0;
		count = other_count;
	}
#endif
	for (int at = first; at < count && !wrong; at++) {
		wrong = (uintptr_t)mine[at].pc != other[at].pc || (mine[at].flags & SFRAME_EXACT) != (unsigned)other[at].exact;
		wrong |= (mine[at].flags & SFRAME_GUESS) != 0;
		if (at > first && !(mine[at].flags & SFRAME_EXACT))
			wrong |= (uintptr_t)mine[at - 1].cfa != other[at].cfa;
	}
	__atomic_fetch_add(&compared, count, __ATOMIC_RELAXED);
	if (wrong)
		say_frames(mine, count, other, other_count, end);
	return wrong;
}

/* libgcc does not guess; and it cannot walk from where it returns to the handler of an exception. */
static int can_be_compared(const struct place *place) {
	uintptr_t pc = (uintptr_t)place->mine[0].pc;
	if (place->end != SFRAME_OUTERMOST)
		return 0;
	if ((place->mine[0].flags & SFRAME_EXACT) && pc - (uintptr_t)_Unwind_Backtrace + (1 << 17) < (1 << 18))
		return 0;
	for (int at = 0; at < place->count; at++)
		if (place->mine[at].flags & SFRAME_GUESS)
			return 0;
	return 1;
}

/* The frames in a place, of what a signal interrupted or of the caller, with libgcc's, whose first one is this function's. */
__attribute__((noinline)) static int compare_place(struct place *place, int is_interrupted) {
	int first = !is_interrupted;
	place->other_count = 0;
	_Unwind_Backtrace(take_other, place);
	while (is_interrupted && first < place->other_count &&
	       !(place->other[first].exact && place->other[first].pc == (uintptr_t)place->mine[0].pc))
		first++;
	return differ(place->mine, place->count, place->other + first, place->other_count - first, !is_interrupted, place->end);
}

/* In a signal handler: the frames of the code that it interrupted. */
static int compare_interrupted(struct place *place, void *context) {
	place->count = sframe_backtrace_frames(context, place->mine, MOST, &place->end);
	return compare_place(place, 1);
}

/* The frames of the caller. */
__attribute__((noinline)) static int compare_in(struct place *place) {
	int plain, wrong;
	errno = 4711;
	place->count = sframe_backtrace_frames(NULL, place->mine, MOST, &place->end);
	wrong = compare_place(place, 0);
	plain = sframe_backtrace(place->plain, MOST);
	wrong |= plain != place->count || errno != 4711;
	for (int at = 1; at < plain && at < place->count; at++)
		wrong |= place->plain[at] != place->mine[at].pc;
	if (wrong)
		__atomic_fetch_add(&differing, 1, __ATOMIC_RELAXED);
	return wrong;
}

__attribute__((noinline)) static int compare(void) {
	int wrong = compare_in(&comparison);
	__asm__ volatile("" ::: "memory");
	return wrong;
}

static int finish(void) {
	printf("%ld frames, %ld wrong\n", compared, differing);
	return differing != 0;
}
