/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Stack traces of the calling thread, walked with the SFrame sections of the program and its libraries. C11 and C++11, GCC or Clang;
   Linux on x86-64, AArch64 and s390x. docs/backtrace.md of sframegen describes it.

   All functions but sframe_backtrace_prepare are safe in signal handlers from the first call on: they take no lock, allocate nothing,
   call nothing of the C library but getauxval, _dl_find_object, memcpy and memcmp (link with -z now, so that these are found at the
   start), keep errno, and need 2 KB of stack. Any thread may call them at any time: before main, in destructors, after fork, in a child
   of vfork, on alternate stacks and on those of coroutines. */
#ifndef SFRAME_BACKTRACE_H
#define SFRAME_BACKTRACE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Why a walk ended. After the first two, the trace is complete as far as there was room. */
enum sframe_end {
    SFRAME_OUTERMOST,    /* there is no caller */
    SFRAME_FULL,         /* there may be more frames than there was room for */
    SFRAME_NO_RULE,      /* no rule says how to unwind this code, and no frame pointer leads on */
    SFRAME_UNREADABLE,   /* memory that the rule reads cannot be read: the stack or the rule is wrong */
    SFRAME_DAMAGED,      /* the SFrame section of this code is damaged */
    SFRAME_NOT_ASCENDING /* the caller's frame would not be nearer to the base of the stack */
};

/* Bits of struct sframe_frame's flags. */
enum {
    SFRAME_EXACT = 1, /* the instruction at `pc` is the next one; without it, the one before `pc` is a call */
    SFRAME_GUESS = 2  /* found with the frame pointer register, which may have held anything else */
};

struct sframe_frame {
    void *pc;
    void *cfa;      /* the canonical frame address, the caller's SP on x86-64 and AArch64; NULL if it is not known */
    unsigned flags; /* SFRAME_EXACT, SFRAME_GUESS */
};

/* Writes at most `size` return addresses, the innermost first, and returns how many. buffer[0] is in the caller of this function, as
   with backtrace() of glibc. Signal-safe. */
int sframe_backtrace(void **buffer, int size);

/* The same for the code that a signal interrupted: `ucontext` is the third argument of the handler. buffer[0] is the address of the
   instruction that comes next, the others are return addresses. Signal-safe. */
int sframe_backtrace_from(const void *ucontext, void **buffer, int size);

/* The same with more about each frame, and why the walk ended. `ucontext` NULL: the frames of the caller; `end` may be NULL.
   Signal-safe. */
int sframe_backtrace_frames(const void *ucontext, struct sframe_frame *frames, int size, enum sframe_end *end);

/* Returns the reason in words. Signal-safe. */
const char *sframe_end_text(enum sframe_end end);

/* Not signal-safe; optional, early in the program, and again after dlopen. Maps the detached sections of loaded objects that have no
   section of their own, from the directories in SFRAMEGEN_PATH. `flags`: 0. Returns the number of new sections; -1 with errno for
   unknown flags. Does nothing in programs that run with more privileges than their user (AT_SECURE). */
int sframe_backtrace_prepare(unsigned flags);

#ifdef __cplusplus
}
#endif

#endif
