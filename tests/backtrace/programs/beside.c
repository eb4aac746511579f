/* A coroutine's stack directly below the first thread's own data, and then, in its place, one that has a page less. */
#define _GNU_SOURCE
#include "sframe_backtrace.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { SIZE = 256 << 10, HOLE = 128 << 10, PAGE = 4096 };

static ucontext_t first, coroutine;
static void *frames[50];

static void body(void) {
	volatile char room[SIZE - (40 << 10)];
	room[0] = 1;
	sframe_backtrace(frames, 50);
}

int main(void) {
	uintptr_t own_data = (uintptr_t)__builtin_thread_pointer();
	char *stack = (char *)(own_data & -(uintptr_t)PAGE) - SIZE;
	ucontext_t damaged;
	if (mmap(stack, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != stack)
		return puts("no room"), 0; /* below the data: another mapping, by chance */
	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = stack;
	coroutine.uc_stack.ss_size = SIZE;
	coroutine.uc_link = &first;
	makecontext(&coroutine, body, 0);
	swapcontext(&first, &coroutine);
	mprotect(stack + HOLE, PAGE, PROT_NONE);
	getcontext(&damaged);
	damaged.uc_mcontext.gregs[REG_RIP] = (greg_t)stack; /* no code */
	damaged.uc_mcontext.gregs[REG_RSP] = (greg_t)stack + HOLE - 1024;
	damaged.uc_mcontext.gregs[REG_RBP] = (greg_t)stack + HOLE + 64;
	printf("%d frame\n", sframe_backtrace_from(&damaged, frames, 50));
}
