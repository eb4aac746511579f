/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The conventions of each machine, as in sframegen/stack/abi: registers by DWARF number, signal frames, and the code of calls. */
#ifndef SFRAMEGEN_MACHINE_H
#define SFRAMEGEN_MACHINE_H

#include "kernel_types.h"

#define BIT(number) (1ull << (number))

enum { CALL_CLONE3 = 435, CALL_FUTEX_WAITV = 449, CALL_FUTEX_WAIT = 455 }; /* on all machines */

#if defined(__TARGET_ARCH_x86)

enum { SAVED_WORDS = 21, SAVED_PC = 16, SAVED_MODE = 17 }; /* struct pt_regs */
enum { FP = 6, SP = 7, LINK = SP, GENERAL = 16, FRAME_RECORD_GIVES_SP = 1, RED_ZONE = 128 };
enum { CONTEXT = 40, CONTEXT_WORDS = 17, CONTEXT_PC = 16 }; /* struct ucontext at SP */

INLINE int in_user_mode(u64 mode) { return (mode & 3) == 3; }
INLINE int is_32_bit(u64 mode) { return (mode & 0xffff) == 0x23; }

/* Saved: R15 R14 R13 R12 RBP RBX R11 R10 R9 R8 RAX RCX RDX RSI RDI, then orig_rax RIP CS flags RSP */
INLINE void copy_registers(u64 *to, const u64 *saved)
{
	to[15] = saved[0], to[14] = saved[1], to[13] = saved[2], to[12] = saved[3], to[6] = saved[4], to[3] = saved[5];
	to[11] = saved[6], to[10] = saved[7], to[9] = saved[8], to[8] = saved[9], to[0] = saved[10], to[2] = saved[11];
	to[1] = saved[12], to[4] = saved[13], to[5] = saved[14], to[7] = saved[19];
}

/* Saved: R8 to R15 RDI RSI RBP RBX RDX RAX RCX RSP RIP */
INLINE void copy_context(u64 *to, const u64 *saved)
{
	to[8] = saved[0], to[9] = saved[1], to[10] = saved[2], to[11] = saved[3], to[12] = saved[4], to[13] = saved[5];
	to[14] = saved[6], to[15] = saved[7], to[5] = saved[8], to[4] = saved[9], to[6] = saved[10], to[3] = saved[11];
	to[1] = saved[12], to[0] = saved[13], to[2] = saved[14], to[7] = saved[15];
}

/* Returns the number of the system call that the task is in; -1 if it is in none. `syscall` copies RIP to RCX, and the kernel sets RAX to
   -ENOSYS at entry. */
INLINE int system_call(const u64 *saved) { return saved[11] == saved[SAVED_PC] && saved[10] == (u64)-38 ? (int)saved[15] : -1; }

enum { CALL_FUTEX = 202, CALL_CLONE = 56, CALL_VFORK = 58 };

/* Is this `mov $15,%rax; syscall`? Signal handlers return to the first instruction; a sample may also be at the second. */
INLINE int returns_from_signal(u64 pc)
{
	u8 code[9];

	if (read_user(code, sizeof(code), (void *)pc) == 0 && *(u32 *)code == 0x0fc0c748 && *(u32 *)(code + 4) == 0x0f000000 && code[8] == 5)
		return 1;
	return read_user(code, sizeof(code), (void *)(pc - 7)) == 0 && *(u32 *)code == 0x0fc0c748 && *(u32 *)(code + 4) == 0x0f000000 &&
	       code[8] == 5;
}

/* Is this after the syscall in `mov $clone or $clone3,%eax; syscall; test %rax,%rax` (Go: cmp $0,%rax), where a thread begins? The numbers
   of the two calls are 0x38 and 0x1b3 = 0x38 + 0x17b. */
INLINE int starts_thread(u64 pc)
{
	u8 code[19];

	if (read_user(code, sizeof(code), (void *)(pc - 16)))
		return 0;
	for (u32 at = 0; at <= 9; at++) {
		u32 tests = code[at + 7] | code[at + 8] << 8 | code[at + 9] << 16;

		if (code[at] == 0xb8 && (code[at + 1] | code[at + 2] << 8) == 0x38 + 0x17b * (code[at + 2] == 1) && code[at + 3] == 0 &&
		    code[at + 4] == 0 && code[at + 5] == 0x0f && code[at + 6] == 5 && (tests == 0xc08548 || tests == 0xf88348))
			return 1;
	}
	return 0;
}

/* Is this `add $8,%rsp; ret`? Then the frame has one word besides the return address, as in CPython's trampolines for -X perf. */
INLINE int drops_a_word_and_returns(u64 pc)
{
	u8 code[5];

	return read_user(code, sizeof(code), (void *)pc) == 0 && *(u32 *)code == 0x08c48348 && code[4] == 0xc3;
}

/* Are these the first bytes of an indirect call (FF /2) that has `size` bytes? */
INLINE int is_indirect_call(u8 opcode, u8 modrm, u8 sib, u32 size)
{
	u32 mod = modrm >> 6, rm = modrm & 7, length = 2;

	if (opcode != 0xff || (modrm >> 3 & 7) != 2)
		return 0;
	if (rm == 4 && mod != 3)
		length++;
	if (mod == 0 && (rm == 5 || (rm == 4 && (sib & 7) == 5)))
		length += 4;
	else if (mod == 1)
		length++;
	else if (mod == 2)
		length += 4;
	return length == size;
}

/* May a call end at this address? -1 if the code cannot be read. A no-op also counts, because runtimes push addresses after one. */
INLINE int ends_call(u64 pc)
{
	u8 code[8];

	if (read_user(code, sizeof(code), (void *)(pc - 8)))
		return -1;
	if (code[3] == 0xe8 || code[7] == 0x90) /* a direct call, a no-op */
		return 1;
	return is_indirect_call(code[6], code[7], 0, 2) || is_indirect_call(code[5], code[6], code[7], 3) ||
	       is_indirect_call(code[4], code[5], code[6], 4) || is_indirect_call(code[2], code[3], code[4], 6) ||
	       is_indirect_call(code[1], code[2], code[3], 7);
}

#elif defined(__TARGET_ARCH_arm64)

enum { SAVED_WORDS = 34, SAVED_PC = 32, SAVED_MODE = 33 }; /* struct user_pt_regs, with which the kernel's own begins */
enum { FP = 29, SP = 31, LINK = 30, GENERAL = 32, FRAME_RECORD_GIVES_SP = 0, RED_ZONE = 0 };
enum { CONTEXT = 128 + 176 + 8, CONTEXT_WORDS = 33, CONTEXT_PC = 32 }; /* siginfo, ucontext, the fault's address, X0 to X30, SP, PC */

INLINE int in_user_mode(u64 mode) { return (mode & 0xf) == 0; }
INLINE int is_32_bit(u64 mode) { return (mode & 0x10) != 0; }

INLINE void copy_registers(u64 *to, const u64 *saved)
{
	for (u32 number = 0; number < GENERAL; number++)
		to[number] = saved[number];
}

INLINE void copy_context(u64 *to, const u64 *saved) { copy_registers(to, saved); }

/* Returns the number of the system call that the task is in, or, in a fault, any number. */
INLINE int system_call(const u64 *saved) { return (int)saved[8]; }

enum { CALL_FUTEX = 98, CALL_CLONE = 220, CALL_VFORK = 220 };

/* Is this at either instruction of `mov x8,#139; svc #0`? */
INLINE int returns_from_signal(u64 pc)
{
	u32 code[2];

	if (read_user(code, sizeof(code), (void *)pc) == 0 && code[0] == 0xd2801168 && code[1] == 0xd4000001)
		return 1;
	return read_user(code, sizeof(code), (void *)(pc - 4)) == 0 && code[0] == 0xd2801168 && code[1] == 0xd4000001;
}

/* Is this after the svc in `mov x8,#clone or #clone3; svc #0; cmp x0,#0`, where a new thread begins? `fork` has another comparison. */
INLINE int starts_thread(u64 pc)
{
	u32 code[4];

	if (read_user(code, sizeof(code), (void *)(pc - 12)))
		return 0;
	for (u32 at = 0; at <= 1; at++)
		if ((code[at] == 0xd2801b88 || code[at] == 0xd2803668) && code[at + 1] == 0xd4000001 && code[at + 2] == 0xf100001f)
			return 1;
	return 0;
}

/* On AArch64, such code has frame records. */
INLINE int drops_a_word_and_returns(u64 pc) { return 0; }

INLINE int ends_call(u64 pc)
{
	u32 word;

	if (read_user(&word, sizeof(word), (void *)(pc - 4)))
		return -1;
	/* bl; blr and its forms that authenticate a pointer; nop; mov x0,x0, which is a no-op, too */
	return word >> 26 == 0x25 || (word & 0xfefff000) == 0xd63f0000 || word == 0xd503201f || word == 0xaa0003e0;
}

#else
#error "unknown machine: -D__TARGET_ARCH_x86 or -D__TARGET_ARCH_arm64"
#endif

/* The context of a program on a perf event: first the registers of the interrupted code, in the order in which the kernel saves them. */
struct perf_context {
	u64 registers[SAVED_WORDS];
	u64 period, address;
};

#endif
