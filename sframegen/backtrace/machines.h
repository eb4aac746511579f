// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Everything that differs between machines, and the system calls. Registers have DWARF's numbers. */
#ifndef SFRAMEGEN_MACHINES_H
#define SFRAMEGEN_MACHINES_H

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>

#if defined(__x86_64__)

enum {
	MACHINE_ABI = 3, /* in the header of a section: 2 for AArch64, 3 for x86-64, 4 for s390x */
	FP = 6, SP = 7, RA = 16,
	RA_OFFSET = -8, /* from the CFA to the return address of every frame; 0: sections have it for each row */
	SP_OFFSET = 0, /* the caller's SP is CFA + this */
	CFA_SCALE = 1, CFA_BIAS = 0, /* sections store a CFA offset as (offset - CFA_BIAS) / CFA_SCALE */
	MAX_CALL_SIZE = 7, /* bytes */
	UCONTEXT_OFFSET = 0 /* from SP to the ucontext, in the code that a signal handler returns to */
};

static const uint8_t sigreturn_code[] = { 0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05 }; /* mov $15,%rax; syscall */

static uintptr_t saved_pc(const ucontext_t *context) { return (uintptr_t)context->uc_mcontext.gregs[REG_RIP]; }

static bool saved_register(const ucontext_t *context, unsigned number, uintptr_t *value)
{
	static const uint8_t places[] = { REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP,
		REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15 };

	if (number >= sizeof places)
		return false;
	*value = (uintptr_t)context->uc_mcontext.gregs[places[number]];
	return true;
}

static uintptr_t without_signature(uintptr_t address) { return address; }

static uintptr_t thread_pointer(void)
{
	uintptr_t pointer;

	__asm__("mov %%fs:0, %0" : "=r"(pointer));
	return pointer;
}

/* Returns true if a call ends at this address. Direct calls are E8 and an offset, the others have 2 to 7 bytes: FF, and 010 in the middle
   bits of the next byte. A no-op counts as a call, because runtimes put one before code that is to look as if it had been called. */
static bool ends_call(const uint8_t *end)
{
	for (int size = 2; size <= 7; size++)
		if (end[-size] == 0xff && (end[1 - size] >> 3 & 7) == 2)
			return true;
	return end[-5] == 0xe8 || end[-1] == 0x90;
}

/* These instructions do nothing, except under valgrind: request 0x1001 asks whether it runs this program. */
static bool is_in_valgrind(void)
{
	uintptr_t question[6] = { 0x1001 }, answer = 0;

	__asm__ volatile("rolq $3, %%rdi\n\trolq $13, %%rdi\n\trolq $61, %%rdi\n\trolq $51, %%rdi\n\txchgq %%rbx, %%rbx"
			 : "+d"(answer) : "a"(question) : "cc", "memory");
	return answer != 0;
}

static long system_call(long number, long first, uintptr_t second, uintptr_t third, long fourth)
{
	register long r10 __asm__("r10") = fourth;
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(first), "S"(second), "d"(third), "r"(r10) : "rcx", "r11", "memory");
	return result;
}

#elif defined(__aarch64__)

enum {
	MACHINE_ABI = 2, FP = 29, SP = 31, RA = 30, RA_OFFSET = 0, SP_OFFSET = 0, CFA_SCALE = 1, CFA_BIAS = 0,
	MAX_CALL_SIZE = 4, UCONTEXT_OFFSET = 128 /* after siginfo */
};

static const uint8_t sigreturn_code[] = { 0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4 }; /* mov x8, #139; svc #0 */

static uintptr_t saved_pc(const ucontext_t *context) { return context->uc_mcontext.pc; }

static bool saved_register(const ucontext_t *context, unsigned number, uintptr_t *value)
{
	if (number > SP)
		return false;
	*value = number == SP ? context->uc_mcontext.sp : context->uc_mcontext.regs[number];
	return true;
}

static uintptr_t without_signature(uintptr_t address)
{
	register uintptr_t x30 __asm__("x30") = address;

	__asm__("hint 7" : "+r"(x30)); /* xpaclri; does nothing on machines without signatures */
	return x30;
}

static uintptr_t thread_pointer(void) { return (uintptr_t)__builtin_thread_pointer(); }
static bool is_in_valgrind(void) { return false; }

/* Returns true after bl, after blr with or without a signature, and after mov x0, x0, which runtimes put before code that is to look as
   if it had been called. */
static bool ends_call(const uint8_t *end)
{
	uint32_t instruction;

	memcpy(&instruction, end - 4, sizeof instruction);
	return instruction >> 26 == 0x25 || (instruction & 0xfefff000) == 0xd63f0000 || instruction == 0xaa0003e0;
}

static long system_call(long number, long first, uintptr_t second, uintptr_t third, long fourth)
{
	register long x8 __asm__("x8") = number, x0 __asm__("x0") = first, x3 __asm__("x3") = fourth;
	register uintptr_t x1 __asm__("x1") = second, x2 __asm__("x2") = third;

	__asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
	return x0;
}

#elif defined(__s390x__)

enum {
	MACHINE_ABI = 4, FP = 11, SP = 15, RA = 14, RA_OFFSET = 0, SP_OFFSET = -160, CFA_SCALE = 8, CFA_BIAS = 160,
	MAX_CALL_SIZE = 6, UCONTEXT_OFFSET = 160 + 8 + 128 /* after the caller's register area, the code and siginfo */
};

static const uint8_t sigreturn_code[] = { 0x0a, 0xad }; /* svc 173 */

static uintptr_t saved_pc(const ucontext_t *context) { return context->uc_mcontext.psw.addr; }

static bool saved_register(const ucontext_t *context, unsigned number, uintptr_t *value)
{
	static const uint8_t floats[] = { 0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15 };

	if (number >= 32)
		return false;
	if (number < 16)
		*value = context->uc_mcontext.gregs[number];
	else
		memcpy(value, &context->uc_mcontext.fpregs.fprs[floats[number - 16]], sizeof *value);
	return true;
}

static uintptr_t without_signature(uintptr_t address) { return address; }
static uintptr_t thread_pointer(void) { return (uintptr_t)__builtin_thread_pointer(); }
static bool is_in_valgrind(void) { return false; }
static bool ends_call(const uint8_t *end) { return end != NULL; } /* calls have too many forms to tell */

static long system_call(long number, long first, uintptr_t second, uintptr_t third, long fourth)
{
	register long r1 __asm__("1") = number, r2 __asm__("2") = first, r5 __asm__("5") = fourth;
	register uintptr_t r3 __asm__("3") = second, r4 __asm__("4") = third;

	__asm__ volatile("svc 0" : "+d"(r2) : "d"(r1), "d"(r3), "d"(r4), "d"(r5) : "memory");
	return r2;
}

#else
#error "sframe_backtrace.c knows x86-64, AArch64 and s390x"
#endif

/* For functions that read the frames of other functions, which sanitizers would report. */
#define WITHOUT_SANITIZERS __attribute__((no_sanitize("address", "thread")))

enum { PAGE = 4096 };

/* Asks the kernel to read from the page: it reads the set of signals before it rejects the operation -1, and so changes nothing. Address
   0 would mean that there is no set. valgrind would report bytes of the set that were never written, but it does not check those of
   rt_sigqueueinfo, which goes to a process that does not exist. */
static bool is_readable(uintptr_t at)
{
	uintptr_t page = at & -(uintptr_t)PAGE;

	if (page == 0)
		return false;
	if (is_in_valgrind())
		return system_call(SYS_rt_sigqueueinfo, INT_MAX, 0, page, 0) != -EFAULT;
	return system_call(SYS_rt_sigprocmask, -1, page, 0, 8) != -EFAULT;
}

/* Returns true if the bytes of the call before `end` can be read: a program may have made its code unreadable. */
static bool has_readable_call(uintptr_t end)
{
	uintptr_t start = end - MAX_CALL_SIZE;

	return is_readable(end - 1) && (start / PAGE == (end - 1) / PAGE || is_readable(start));
}

#endif
