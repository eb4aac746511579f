/* A stack of return addresses to code that is unreadable. */
#define _GNU_SOURCE
#include "sframe_backtrace.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

int main(int count, char **words) {
	void *library = dlopen(words[count - 1], RTLD_NOW), *buffer[50];
	uintptr_t called = (uintptr_t)dlsym(library, "call") + 9, stack[64] __attribute__((aligned(16)));
	ucontext_t damaged;
	memset(stack, 0, sizeof stack);
	for (int at = 0; at < 8; at++)
		stack[at] = called;
	mprotect((void *)(called & -(uintptr_t)4096), 4096, PROT_NONE);
	getcontext(&damaged);
	damaged.uc_mcontext.gregs[REG_RSP] = damaged.uc_mcontext.gregs[REG_RBP] = (greg_t)stack;
	for (int code = 0; code < 2; code++) {
		damaged.uc_mcontext.gregs[REG_RIP] = code ? (greg_t)called : 64;
		printf("%d\n", sframe_backtrace_from(&damaged, buffer, 50) > code);
	}
	mprotect((void *)(called & -(uintptr_t)4096), 4096, PROT_READ | PROT_EXEC);
}
