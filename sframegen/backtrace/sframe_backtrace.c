// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Walks the stack of the calling thread with the SFrame sections that are mapped in this process.

   The way of a frame: its PC -> a rule, in most cases from the cache -> (CFA, return address, FP) -> the caller's PC, SP and FP. A PC that
   is not in the cache -> the object that is loaded there -> its section -> the function -> the row -> the rule, into the cache.

   Three things make this safe in a signal handler that may have interrupted anything, this file included. What is written for later walks
   (the cache, which objects are pinned, the bounds of the thread's stack) is valid at each moment, so that nobody waits for anybody.
   Memory is read only where it is known to be readable. And every number in a section is checked before it is used. */
#define _GNU_SOURCE
#include "sframe_backtrace.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* Tables of code made at run time, if there is their header. */
#if defined(__has_include)
#if __has_include("sframegen_jit.h")
#include "sframegen_jit.h"
#define HAS_JIT_TABLES 1
#endif
#endif

#ifndef PT_GNU_SFRAME
#define PT_GNU_SFRAME 0x6474e554
#endif

/* What is readable may still be what the sanitizers watch: other functions' frames. */
#define WITHOUT_SANITIZERS __attribute__((no_sanitize("address", "thread")))

/* --- Machines ---------------------------------------------------------------------------------------------------------------------
   Registers have DWARF's numbers. All that differs between machines is here. */

#if defined(__x86_64__)

enum {
	MACHINE_ABI = 3, /* as the header of a section says it */
	FP = 6,
	SP = 7,
	RA = 16,
	RA_OFFSET = -8, /* of every frame's return address from its CFA; 0: sections say where it is */
	SP_OFFSET = 0, /* the caller's SP is CFA + this */
	CFA_SCALE = 1, /* sections store a CFA offset as (offset - CFA_BIAS) / CFA_SCALE */
	CFA_BIAS = 0,
	CALL_SIZE = 7, /* at most */
	CONTEXT_AT = 0 /* from SP in the code that a signal handler returns to: the ucontext */
};

static const uint8_t trampoline[] = { 0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05 }; /* mov $15,%rax; syscall */

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

/* Does a call end at this address? Calls have 2 to 7 bytes, direct ones E8 and an offset, the others FF and 010 in the byte after it. A
   no-op counts as one: it stands before addresses that are to look as if they had been called. */
static bool ends_call(const uint8_t *end)
{
	for (int size = 2; size <= 7; size++)
		if (end[-size] == 0xff && (end[1 - size] >> 3 & 7) == 2)
			return true;
	return end[-5] == 0xe8 || end[-1] == 0x90;
}

/* valgrind gives these instructions a meaning, which otherwise have none; 0x1001 asks whether it runs this. */
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
	CALL_SIZE = 4, CONTEXT_AT = 128 /* after siginfo */
};

static const uint8_t trampoline[] = { 0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4 }; /* mov x8, #139; svc #0 */

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

/* bl; blr, with or without a signature; mov x0, x0, which stands before addresses that are to look as if they had been called. */
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
	CALL_SIZE = 6, CONTEXT_AT = 160 + 8 + 128 /* after the caller's register area, the code and siginfo */
};

static const uint8_t trampoline[] = { 0x0a, 0xad }; /* svc 173 */

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
static bool ends_call(const uint8_t *end) { return end != NULL; } /* there are many forms of it */

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

/* --- Rules ------------------------------------------------------------------------------------------------------------------------ */

enum { BASE_CFA = 0xfe, KEPT = 0xff }; /* besides the numbers of registers */

/* A value: *(base + offset), or base + offset without `deref`. KEPT: it is in its own register. */
struct value {
	int32_t offset;
	uint8_t base;
	bool deref;
};

enum rule_kind { RULE, RULE_SIGNAL, RULE_OUTERMOST, RULE_PUT, RULE_NONE, RULE_UNKNOWN, RULE_DAMAGED };

/* Where a frame's caller is. RULE_SIGNAL: the caller was interrupted, and the kernel saved all of its registers. RULE_PUT:
   a library has put the frame's return address on the stack. RULE_UNKNOWN: there is none, and guesses are not wanted. */
struct rule {
	enum rule_kind kind;
	struct value cfa, ra, fp;
};

/* Most rules fit into a word, which is what the cache has:
   (cfa, ra, fp) = (SP or FP + offset, *(cfa + offset), *(cfa + offset) or kept).
   Where FP is kept its offset is that of RA, so that a reader can load first and decide afterwards, without a branch. */
typedef uint64_t packed_rule;

enum { PACKED_RULE, PACKED_OUTERMOST, PACKED_NONE, PACKED_OTHER, PACKED_KIND = 3, PACKED_BASE_FP = 4, PACKED_FP_SAVED = 8 };

static inline int32_t cfa_offset(packed_rule rule) { return (int32_t)((int64_t)rule >> 40); }
static inline int32_t ra_offset(packed_rule rule) { return RA_OFFSET ? RA_OFFSET : (int16_t)(rule >> 24); }
static inline int32_t fp_offset(packed_rule rule) { return (int16_t)(rule >> 8); }

static bool fits(int32_t value, int bits) { return value >= -(1 << (bits - 1)) && value < 1 << (bits - 1); }

static packed_rule pack(const struct rule *rule)
{
	const struct value *cfa = &rule->cfa, *ra = &rule->ra, *fp = &rule->fp;
	packed_rule packed = PACKED_RULE;

	if (rule->kind == RULE_OUTERMOST || rule->kind == RULE_NONE)
		return rule->kind == RULE_NONE ? PACKED_NONE : PACKED_OUTERMOST;
	if (rule->kind != RULE || cfa->deref || (cfa->base != SP && cfa->base != FP) || !fits(cfa->offset, 24))
		return PACKED_OTHER;
	if (ra->base != BASE_CFA || !ra->deref || !fits(ra->offset, 16) || (RA_OFFSET != 0 && ra->offset != RA_OFFSET))
		return PACKED_OTHER;
	if (fp->base != KEPT && (fp->base != BASE_CFA || !fp->deref || !fits(fp->offset, 16)))
		return PACKED_OTHER;
	if (cfa->base == FP)
		packed |= PACKED_BASE_FP;
	if (fp->base != KEPT)
		packed |= PACKED_FP_SAVED;
	packed |= (uint64_t)(uint16_t)(fp->base != KEPT ? fp->offset : ra->offset) << 8;
	return packed | (uint64_t)(uint16_t)ra->offset << 24 | (uint64_t)cfa->offset << 40;
}

/* --- Sections --------------------------------------------------------------------------------------------------------------------- */

struct header {
	uint16_t magic;
	uint8_t version, flags, abi;
	int8_t fixed_fp_offset, fixed_ra_offset;
	uint8_t auxiliary_size;
	uint32_t functions, rows, rows_size, index_at, rows_at;
};

_Static_assert(sizeof(struct header) == 28, "as in the file");

enum { PAGE = 4096 };
enum { MAGIC = 0xdee2, FLAG_SORTED = 1, FLAG_FRAME_POINTERS = 2, FLAG_RELATIVE = 4 };

/* A section whose header was checked: `functions` entries of the index and `rows_size` bytes of rows can be read. */
struct section {
	const uint8_t *start, *index, *rows;
	uint32_t functions, rows_size;
	uintptr_t origin; /* where the section would be if its numbers were right for the place of the code */
	uintptr_t code_start, code_end; /* code that can be read */
	uint8_t version, entry_size;
	bool is_relative; /* a function's start counts from its own field */
};

static uint16_t load16(const uint8_t *at) { uint16_t value; memcpy(&value, at, sizeof value); return value; }
static uint32_t load32(const uint8_t *at) { uint32_t value; memcpy(&value, at, sizeof value); return value; }
static uint64_t load64(const uint8_t *at) { uint64_t value; memcpy(&value, at, sizeof value); return value; }

/* Returns false if there is something in the header that is wrong, or that this file does not know. */
static bool open_section(const uint8_t *bytes, size_t size, uintptr_t origin, struct section *section)
{
	struct header header;
	size_t entry_size, room;

	if (size < sizeof header)
		return false;
	memcpy(&header, bytes, sizeof header);
	if (header.magic != MAGIC || header.abi != MACHINE_ABI || header.fixed_fp_offset != 0 || header.fixed_ra_offset != RA_OFFSET)
		return false;
	if (header.version == 3)
		entry_size = 16;
	else if (header.version == 2)
		entry_size = 20;
	else
		return false;
	if ((header.flags & ~(FLAG_FRAME_POINTERS | FLAG_RELATIVE)) != FLAG_SORTED || size - sizeof header < header.auxiliary_size)
		return false;
	room = size - sizeof header - header.auxiliary_size;
	if (header.index_at > room || header.functions > (room - header.index_at) / entry_size)
		return false;
	if (header.rows_at > room || header.rows_size > room - header.rows_at)
		return false;
	bytes += sizeof header + header.auxiliary_size;
	*section = (struct section){ .start = bytes - sizeof header - header.auxiliary_size, .index = bytes + header.index_at,
		.rows = bytes + header.rows_at, .functions = header.functions, .rows_size = header.rows_size, .origin = origin,
		.version = header.version, .entry_size = (uint8_t)entry_size, .is_relative = (header.flags & FLAG_RELATIVE) != 0 };
	return true;
}

/* The rows of a function: `left` bytes from `rows` on can be read. */
struct function {
	const uint8_t *rows;
	size_t left;
	uint32_t count, size;
	uintptr_t offset; /* of the PC from the function's start */
	uint8_t info, block_size;
	bool is_flexible, is_signal;
};

enum { INFO_START_WIDTH = 0x0f, INFO_BLOCKS = 0x10, INFO_SIGNAL = 0x80, TYPE_MASK = 0x1f, TYPE_FLEXIBLE = 1 };

static inline uintptr_t function_start(const struct section *section, const uint8_t *entry)
{
	uintptr_t from = section->origin + (section->is_relative ? (uintptr_t)(entry - section->start) : 0);

	return from + (section->version == 3 ? load64(entry) : (uint64_t)(int32_t)load32(entry));
}

static bool is_readable(uintptr_t at);

/* A program may have made its code unreadable. */
static bool has_readable_call(uintptr_t end)
{
	uintptr_t start = end - CALL_SIZE;

	return is_readable(end - 1) && (start / PAGE == (end - 1) / PAGE || is_readable(start));
}

static bool is_after_call(const struct section *section, uintptr_t pc)
{
	if (pc > section->code_end || pc - CALL_SIZE < section->code_start || !has_readable_call(pc))
		return true;
	return ends_call((const uint8_t *)pc);
}

/* An index that is not in order leads to a wrong entry, which does not contain the PC, or to a wrong rule; to nothing worse. */
static enum rule_kind find_function(const struct section *section, uintptr_t pc, struct function *function)
{
	const uint8_t *entry;
	uint32_t low = 0, high = section->functions, at;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (function_start(section, section->index + (size_t)middle * section->entry_size) <= pc)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return RULE_NONE;
	entry = section->index + (size_t)(low - 1) * section->entry_size;
	function->offset = pc - function_start(section, entry);
	function->size = load32(entry + (section->version == 3 ? 8 : 4));
	if (function->offset >= function->size)
		return RULE_NONE;
	at = load32(entry + (section->version == 3 ? 12 : 8));
	if (at > section->rows_size)
		return RULE_DAMAGED;
	function->rows = section->rows + at;
	function->left = section->rows_size - at;
	if (section->version == 2) {
		function->count = load32(entry + 12);
		function->info = entry[16];
		function->block_size = entry[17];
		function->is_flexible = function->is_signal = false;
		return RULE;
	}
	if (function->left < 5)
		return RULE_DAMAGED;
	function->count = load16(function->rows);
	function->info = function->rows[2];
	function->is_signal = function->info & INFO_SIGNAL;
	function->is_flexible = (function->rows[3] & TYPE_MASK) == TYPE_FLEXIBLE;
	if ((function->rows[3] & TYPE_MASK) > TYPE_FLEXIBLE)
		return RULE_DAMAGED;
	function->block_size = function->rows[4];
	function->rows += 5;
	function->left -= 5;
	return function->count == 0 ? RULE_OUTERMOST : RULE;
}

/* The data words of a row. */
struct words {
	const uint8_t *at;
	unsigned count, width;
};

static int32_t signed_word(const struct words *words, unsigned number)
{
	const uint8_t *at = words->at + number * words->width;

	if (words->width == 1)
		return (int8_t)*at;
	return words->width == 2 ? (int16_t)load16(at) : (int32_t)load32(at);
}

static uint32_t unsigned_word(const struct words *words, unsigned number)
{
	uint32_t word = (uint32_t)signed_word(words, number);

	return words->width == 4 ? word : word & ((1u << 8 * words->width) - 1);
}

enum { ROW_BASE_SP = 1 };

/* Finds the last row that begins at the PC or before it. */
static enum rule_kind find_row(const struct function *function, struct words *words, uint8_t *info)
{
	unsigned width = 1u << (function->info & INFO_START_WIDTH);
	const uint8_t *row = function->rows, *end = row + function->left;
	uintptr_t offset = function->offset;
	enum rule_kind found = RULE_NONE;

	if (width > 4 || ((function->info & INFO_BLOCKS) && function->block_size == 0))
		return RULE_DAMAGED;
	if (function->info & INFO_BLOCKS)
		offset %= function->block_size;
	for (uint32_t number = 0; number < function->count; number++) {
		struct words here;
		uint32_t start;

		if ((size_t)(end - row) < width + 1)
			return RULE_DAMAGED;
		start = width == 1 ? *row : width == 2 ? load16(row) : load32(row);
		if (start > offset)
			break;
		here = (struct words){ .at = row + width + 1, .count = row[width] >> 1 & 15, .width = 1u << (row[width] >> 5 & 3) };
		if (here.width > 4 || (size_t)(end - here.at) < here.count * here.width)
			return RULE_DAMAGED;
		*words = here;
		*info = row[width];
		found = RULE;
		row = here.at + here.count * here.width;
	}
	return found;
}

/* CFA, and then, without those that the machine fixes, RA and FP, all from the CFA. */
static enum rule_kind read_default(const struct words *words, uint8_t info, uint8_t version, struct rule *rule)
{
	struct value *tracked[] = { &rule->ra, &rule->fp };
	unsigned number = 1;

	rule->cfa = (struct value){ .base = info & ROW_BASE_SP ? SP : FP, .offset = signed_word(words, 0) * CFA_SCALE + CFA_BIAS };
	for (unsigned which = RA_OFFSET ? 1 : 0; which < 2 && number < words->count; which++, number++) {
		int32_t offset = signed_word(words, number);

		if (MACHINE_ABI == 4 && version == 2 && (offset & 1)) /* a register */
			*tracked[which] = (struct value){ .base = (uint8_t)(offset >> 1) };
		else if (offset != 0)
			*tracked[which] = (struct value){ .base = BASE_CFA, .offset = offset, .deref = true };
	}
	return number == words->count ? RULE : RULE_DAMAGED;
}

/* For each of CFA, RA and FP a control word and an offset, or a 0 for what the machine fixes. */
static enum rule_kind read_flexible(const struct words *words, struct rule *rule)
{
	struct value *tracked[] = { &rule->cfa, &rule->ra, &rule->fp };
	unsigned number = 0;

	for (unsigned which = 0; which < 3 && number < words->count; which++) {
		uint32_t control = unsigned_word(words, number++);

		if (control == 0)
			continue;
		if (number == words->count || control >> 3 > 31)
			return RULE_DAMAGED;
		*tracked[which] = (struct value){ .base = control & 1 ? (uint8_t)(control >> 3) : BASE_CFA, .deref = control & 2,
			.offset = signed_word(words, number++) };
	}
	if (CFA_SCALE != 1 && rule->cfa.base < 32)
		rule->cfa.offset = rule->cfa.offset * CFA_SCALE + CFA_BIAS;
	return number == words->count && rule->cfa.base < 32 ? RULE : RULE_DAMAGED;
}

/* The rule of a return address is that of the call before it. Before an address that a library has put on the stack there is no call:
   code is to go on there that a signal handler returns to, that catches an exception, or that makecontext() chose. */
static void find_rule(const struct section *section, uintptr_t pc, bool is_return, struct rule *rule)
{
	bool is_put = is_return && !is_after_call(section, pc);
	struct function function;
	struct words words;
	uint8_t info;

	rule->cfa = rule->fp = rule->ra = (struct value){ .base = KEPT };
	if (RA_OFFSET)
		rule->ra = (struct value){ .base = BASE_CFA, .offset = RA_OFFSET, .deref = true };
	rule->kind = find_function(section, is_return && !is_put ? pc - 1 : pc, &function);
	if (rule->kind == RULE)
		rule->kind = find_row(&function, &words, &info);
	if (rule->kind != RULE)
		return;
	if (words.count == 0)
		rule->kind = RULE_OUTERMOST;
	else if (function.is_flexible)
		rule->kind = read_flexible(&words, rule);
	else
		rule->kind = read_default(&words, info, section->version, rule);
	if (rule->kind == RULE)
		rule->kind = function.is_signal ? RULE_SIGNAL : is_put ? RULE_PUT : RULE;
}

/* --- Objects ---------------------------------------------------------------------------------------------------------------------- */

/* A loaded program or library, as one walk sees it. `identity` goes into the cache's keys: 0 for what is pinned (it is never unloaded),
   a hash of the build-id and the place for other objects, NOT_CACHED for others without a build-id. */
struct object {
	uintptr_t start, end, bias;
	uint64_t identity;
	const ElfW(Phdr) *headers;
	unsigned header_count;
	enum { NO_SECTION, HAS_SECTION, BAD_SECTION } has;
	struct section section;
};

enum { NOT_CACHED = 1, MOST_PAGES = 1024 };

/* struct dl_find_object of glibc 2.35, for older headers. */
struct loaded_object {
	unsigned long long flags;
	void *start, *end;
	struct link_map *map;
	void *eh_frame;
	unsigned long long reserved[8];
};

/* Functions of the C library that may not be there. Weak references are resolved when this code is loaded, so there is no first call
   that would be different. _dl_find_object takes no lock. */
__attribute__((weak)) int find_loaded_object(void *address, struct loaded_object *found) __asm__("_dl_find_object");
__attribute__((weak)) const char *gnu_libc_version(void) __asm__("gnu_get_libc_version");
__attribute__((weak, visibility("hidden"))) extern const ElfW(Ehdr) __ehdr_start; /* the linker's: of the object that this code is in */

/* The kernel reads the set of signals before it finds that there is no such operation, and then changes nothing. A set at 0 is none.
   valgrind would report bytes that nobody has written yet; it does not look at what no process would get with no signal. */
static bool is_readable(uintptr_t at)
{
	uintptr_t page = at & -(uintptr_t)PAGE;

	if (page == 0)
		return false;
	if (is_in_valgrind())
		return system_call(SYS_rt_sigqueueinfo, INT_MAX, 0, page, 0) != -EFAULT;
	return system_call(SYS_rt_sigprocmask, -1, page, 0, 8) != -EFAULT;
}

/* Returns the bytes if they are in the part of a readable segment that comes from the file, else NULL. */
static const uint8_t *segment_bytes(const struct object *object, const ElfW(Phdr) *part)
{
	for (unsigned number = 0; number < object->header_count; number++) {
		const ElfW(Phdr) *load = &object->headers[number];
		uint64_t offset = part->p_vaddr - load->p_vaddr;

		if (load->p_type == PT_LOAD && (load->p_flags & PF_R) && offset <= load->p_filesz && part->p_memsz <= load->p_filesz - offset)
			return (const uint8_t *)(object->bias + part->p_vaddr);
	}
	return NULL;
}

static bool is_code(const struct object *object, uintptr_t pc)
{
	for (unsigned number = 0; number < object->header_count; number++) {
		const ElfW(Phdr) *load = &object->headers[number];

		if (load->p_type == PT_LOAD && (load->p_flags & (PF_R | PF_X)) == (PF_R | PF_X) && pc - (object->bias + load->p_vaddr) < load->p_memsz)
			return true;
	}
	return false;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
	return hash ^ hash >> 29;
}

/* Returns the build-id's bytes and their number; 0 if there is none. */
static size_t find_build_id(const struct object *object, const uint8_t **id)
{
	for (unsigned number = 0; number < object->header_count; number++) {
		const uint8_t *note = object->headers[number].p_type == PT_NOTE ? segment_bytes(object, &object->headers[number]) : NULL;
		size_t left = note ? object->headers[number].p_memsz : 0;

		while (left >= 12) {
			uint64_t name = (load32(note) + 3ull) & ~3ull, size = load32(note + 4), whole = 12 + name + ((size + 3) & ~3ull);

			if (12 + name + size > left)
				break;
			if (load32(note + 8) == NT_GNU_BUILD_ID && load32(note) == 4 && memcmp(note + 12, "GNU", 4) == 0) {
				*id = note + 16;
				return size;
			}
			if (whole > left)
				break;
			note += whole;
			left -= whole;
		}
	}
	return 0;
}

/* Equal build-ids at equal places are equal bytes, and equal rules, whatever was unloaded and loaded in between. */
static uint64_t identity_of(const struct object *object)
{
	const uint8_t *id;
	size_t size = find_build_id(object, &id);
	uint64_t hash = mix(object->bias, size), word;

	if (size < 8)
		return NOT_CACHED;
	for (size_t at = 0; at + 8 <= size; at += 8)
		hash = mix(hash, load64(id + at));
	memcpy(&word, id + size - 8, 8);
	return mix(hash, word) | 1ull << 63; /* no address has this bit */
}

/* Sections that sframe_backtrace_prepare() has read, by the identity of their objects. An entry's section is complete before its identity
   is there, and stays. */
enum { MOST_DETACHED = 1024 };

static struct { _Atomic uint64_t identity; struct section section; } detached[MOST_DETACHED];
static atomic_bool has_detached;

static bool find_detached(struct object *object)
{
	uint64_t identity, known;

	if (!atomic_load_explicit(&has_detached, memory_order_acquire))
		return false;
	identity = identity_of(object);
	for (unsigned number = 0; number < MOST_DETACHED; number++) {
		unsigned at = (unsigned)(identity + number) % MOST_DETACHED;

		known = atomic_load_explicit(&detached[at].identity, memory_order_acquire);
		if (known == identity && identity != NOT_CACHED)
			object->section = detached[at].section;
		if (known == identity || known == 0)
			return known == identity && identity != NOT_CACHED;
	}
	return false;
}

/* Sets everything but the identity. Returns false if the headers describe no such object. */
static bool describe(struct object *object, const ElfW(Phdr) *headers, unsigned count, uintptr_t bias)
{
	const ElfW(Phdr) *part = NULL, *code = NULL;

	*object = (struct object){ .start = UINTPTR_MAX, .bias = bias, .headers = headers, .header_count = count };
	for (unsigned number = 0; number < count; number++) {
		const ElfW(Phdr) *header = &headers[number];

		if (header->p_type == PT_LOAD) {
			if (bias + header->p_vaddr < object->start)
				object->start = bias + header->p_vaddr;
			if (bias + header->p_vaddr + header->p_memsz > object->end)
				object->end = bias + header->p_vaddr + header->p_memsz;
			if ((header->p_flags & (PF_R | PF_X)) == (PF_R | PF_X))
				code = header;
		} else if (header->p_type == PT_GNU_SFRAME) {
			part = header;
		}
	}
	if (part) {
		const uint8_t *bytes = segment_bytes(object, part);

		/* A file that is cut off ends before its section's last byte. */
		object->has = bytes && part->p_memsz != 0 && is_readable((uintptr_t)bytes + part->p_memsz - 1) &&
			open_section(bytes, part->p_memsz, (uintptr_t)bytes, &object->section) ? HAS_SECTION : BAD_SECTION;
	} else if (find_detached(object)) {
		object->has = HAS_SECTION;
	}
	object->section.code_start = code ? bias + code->p_vaddr : UINTPTR_MAX;
	object->section.code_end = code ? bias + code->p_vaddr + code->p_filesz : 0;
	return object->start < object->end;
}

/* Are these the headers of an object, of which one says that they are here? */
static bool has_itself(const ElfW(Phdr) *headers, size_t size, uintptr_t bias, uint64_t offset)
{
	for (const ElfW(Phdr) *load = headers; load < headers + size / sizeof *headers; load++)
		if (load->p_type == PT_LOAD && offset >= load->p_offset && offset - load->p_offset + size <= load->p_filesz &&
		    bias + load->p_vaddr + (offset - load->p_offset) == (uintptr_t)headers)
			return true;
	return false;
}

/* `start`: of an object's first segment, which begins with the ELF header. The program headers are in it, or in a later segment, whose
   bytes are farther apart in memory than in the file: by whole pages. */
static bool describe_at(struct object *object, uintptr_t start, uintptr_t end, uintptr_t bias)
{
	const ElfW(Ehdr) *file = (const ElfW(Ehdr) *)start;
	size_t size = (size_t)file->e_phnum * sizeof(ElfW(Phdr));
	uintptr_t at = start + file->e_phoff;

	if (memcmp(file->e_ident, ELFMAG, SELFMAG) != 0 || file->e_phentsize != sizeof(ElfW(Phdr)) || file->e_phoff % 8 != 0)
		return false;
	for (int pages = 0; pages < MOST_PAGES && at < end && size <= end - at; pages++, at += PAGE) {
		const ElfW(Phdr) *headers = (const ElfW(Phdr) *)at;

		if (at + size > start + PAGE && !(is_readable(at) && is_readable(at + size - 8)))
			continue;
		if (has_itself(headers, size, bias, file->e_phoff))
			return describe(object, headers, file->e_phnum, bias);
	}
	return false;
}

/* The program itself, whose headers the kernel says. A program without an interpreter is static: this code is in it, and so is the start
   of the file that the linker names. */
static bool describe_program(struct object *program)
{
	const ElfW(Phdr) *headers = (const ElfW(Phdr) *)getauxval(AT_PHDR);
	unsigned count = (unsigned)getauxval(AT_PHNUM);
	uintptr_t bias = 0;

	for (unsigned number = 0; number < count; number++) {
		if (headers[number].p_type == PT_PHDR)
			return describe(program, headers, count, (uintptr_t)headers - headers[number].p_vaddr);
		if (headers[number].p_type == PT_INTERP)
			return false;
	}
	if (&__ehdr_start && __ehdr_start.e_type == ET_DYN)
		bias = (uintptr_t)&__ehdr_start;
	return describe(program, headers, count, bias);
}

static const struct r_debug *loader_list(const struct object *program)
{
	for (unsigned number = 0; number < program->header_count; number++) {
		const ElfW(Phdr) *header = &program->headers[number];

		if (header->p_type != PT_DYNAMIC)
			continue;
		for (const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(program->bias + header->p_vaddr); entry->d_tag != DT_NULL; entry++)
			if (entry->d_tag == DT_DEBUG)
				return (const struct r_debug *)entry->d_un.d_ptr;
	}
	return NULL;
}

/* Returns the object after this one in the part of the loader's list that never changes, NULL at its end. glibc only appends to the list,
   and never unloads what was there at the start; ld.so was. musl never unloads anything. */
static const struct link_map *next_pinned(const struct r_debug *list, const struct link_map *map)
{
	return gnu_libc_version && map->l_addr == list->r_ldbase ? NULL : map->l_next;
}

/* Where objects begin whose answer is known: as it is where they are pinned, with UNPINNED where not. Neither changes: the list's part
   does not, and nothing else is ever loaded where a pinned object is. */
static _Atomic uintptr_t judged[512];

enum { UNPINNED = 1 };

static bool is_in_pinned_part(const struct link_map *map)
{
	struct object program;
	const struct r_debug *list = describe_program(&program) ? loader_list(&program) : NULL;

	for (const struct link_map *at = list ? list->r_map : NULL; at; at = next_pinned(list, at))
		if (at == map)
			return true;
	return false;
}

static bool is_pinned(const struct link_map *map, uintptr_t start)
{
	_Atomic uintptr_t *known = &judged[(start >> 12 ^ start >> 21) % 512];
	uintptr_t answer = atomic_load_explicit(known, memory_order_relaxed);

	if ((answer & ~(uintptr_t)UNPINNED) != start) {
		answer = start | (is_in_pinned_part(map) ? 0 : UNPINNED);
		atomic_store_explicit(known, answer, memory_order_relaxed);
	}
	return !(answer & UNPINNED);
}

static bool is_in(const struct object *object, uintptr_t pc) { return pc >= object->start && pc < object->end; }

static bool find_in_list(uintptr_t pc, struct object *object)
{
	const struct r_debug *list;
	const struct link_map *map;

	if (!describe_program(object))
		return false;
	if (is_in(object, pc))
		return true;
	list = loader_list(object);
	for (map = list ? list->r_map : NULL; map; map = next_pinned(list, map))
		if (map->l_addr && describe_at(object, map->l_addr, UINTPTR_MAX, map->l_addr) && is_in(object, pc))
			return true;
	return false;
}

/* An object that is not pinned cannot go while it is looked at if it has a frame on this stack. Only a stack that is corrupt can name an
   object that another thread is just unloading. The first of the loader's objects is the program, or in a namespace of its own. */
static bool find_object(uintptr_t pc, struct object *object)
{
	struct loaded_object found;

	if (!find_loaded_object || find_loaded_object((void *)pc, &found) != 0)
		return find_in_list(pc, object);
	if (!found.map->l_prev && describe_program(object) && is_in(object, pc))
		return true;
	if (!describe_at(object, (uintptr_t)found.start, (uintptr_t)found.end, found.map->l_addr))
		return false;
	object->identity = is_pinned(found.map, (uintptr_t)found.start) ? 0 : identity_of(object);
	return true;
}

/* --- Memory ----------------------------------------------------------------------------------------------------------------------- */

enum { FARTHEST = 64 * PAGE, FARTHEST_TOP = 16 * PAGE, RED_ZONE = 128 };

/* What is known to be readable of this thread's own stack: it stays so as long as the thread lives, and this variable lives no longer. */
static __thread struct { uintptr_t low, high; } own_stack __attribute__((tls_model("initial-exec")));

/* A frame of a walk, and what is known there: the memory from `low` to `high` can be read, and rules of the object with this identity
   hold. */
struct position {
	uintptr_t pc, sp, fp;
	uintptr_t low, high;
	uint64_t identity;
	unsigned flags; /* SFRAME_EXACT, SFRAME_GUESS */
};

struct walker {
	struct position now;
	const ucontext_t *registers; /* all of the frame's, if it was interrupted */
	uintptr_t first_page;
	uintptr_t cfa; /* what step() found */
	unsigned met;
	struct object objects[8]; /* the last that were met */
};

static inline bool is_exact(const struct walker *walker) { return walker->now.flags & SFRAME_EXACT; }

static inline bool is_known(const struct position *now, uintptr_t at)
{
	return at - now->low < now->high - now->low && at % 8 == 0;
}

static bool in_own_stack(uintptr_t at) { return own_stack.low != 0 && at >= own_stack.low && at < own_stack.high; }

/* Makes the word at this address known. What is known is one range, which grows upwards as the walk goes; farther away it begins again.
   Of the own stack it is only what lies above SP: a runtime may take pages below away, and give them back. */
__attribute__((noinline)) static bool reach(struct walker *walker, uintptr_t at)
{
	uintptr_t page = at & -(uintptr_t)PAGE;

	if (at % 8 != 0)
		return false;
	if (in_own_stack(at) && at >= walker->now.sp - RED_ZONE) {
		walker->now.low = (walker->now.sp - RED_ZONE) & -(uintptr_t)PAGE;
		walker->now.low = walker->now.low < own_stack.low ? own_stack.low : walker->now.low;
		walker->now.high = own_stack.high;
		return true;
	}
	if (page - walker->now.high < FARTHEST) {
		while (walker->now.high <= page && is_readable(walker->now.high)) {
			walker->now.high += PAGE;
			if (in_own_stack(walker->now.high))
				walker->now.high = own_stack.high;
		}
		if (page < walker->now.high)
			return true;
	}
	if (!is_readable(page))
		return false;
	walker->now.low = page;
	walker->now.high = page + PAGE;
	return true;
}

/* The kernel puts random bytes above the stack of the first thread, and the C library a thread's own data above those of the others.
   That of the first one is among the libraries, where a coroutine's stack may be below it. After fork in another thread, the child's
   stack is not found. */
static uintptr_t stack_top(void)
{
	bool is_first = system_call(SYS_getpid, 0, 0, 0, 0) == system_call(SYS_gettid, 0, 0, 0, 0);

	return is_first ? getauxval(AT_RANDOM) : thread_pointer();
}

static void keep_own_stack(struct walker *walker)
{
	uintptr_t top;

	if (walker->now.low > walker->first_page)
		return; /* there is a gap in what is known */
	if (own_stack.low == 0) {
		top = stack_top();
		if (top < walker->now.low || top - walker->now.low >= walker->now.high - walker->now.low + FARTHEST_TOP)
			return;
		while (walker->now.high <= top && is_readable(walker->now.high))
			walker->now.high += PAGE;
		if (walker->now.high <= top)
			return;
		own_stack.high = walker->now.high;
		atomic_signal_fence(memory_order_seq_cst); /* a handler that comes now finds no range yet */
		own_stack.low = walker->now.low;
	}
	if (walker->now.high == own_stack.high && walker->now.low < own_stack.low)
		own_stack.low = walker->now.low;
}

WITHOUT_SANITIZERS static inline uintptr_t load(uintptr_t at) { return *(const volatile uintptr_t *)at; }

/* --- The cache --------------------------------------------------------------------------------------------------------------------
   An entry is a rule and {PC ^ identity ^ hash of the rule}. Words of two writers do not fit together, so nobody waits for anybody, and
   a signal handler may interrupt a writer. */

enum { CACHE_ENTRIES = 16384 };

static struct { _Atomic uint64_t key; _Atomic packed_rule rule; } cache[CACHE_ENTRIES];

static inline uint64_t spread(packed_rule rule) { return (rule + 1) * 0x9e3779b97f4a7c15u; }
static inline unsigned cache_index(uintptr_t pc) { return pc % CACHE_ENTRIES; }

/* Returns the object of the PC, and asks for each only once in a walk. NULL: it is in none. */
static struct object *meet(struct walker *walker, uintptr_t pc)
{
	unsigned room = sizeof walker->objects / sizeof *walker->objects, count = walker->met < room ? walker->met : room;
	struct object *object;

	for (unsigned number = 0; number < count; number++)
		if (pc - walker->objects[number].start < walker->objects[number].end - walker->objects[number].start)
			return &walker->objects[number];
	object = &walker->objects[walker->met % room];
	object->start = object->end = 0;
	if (!find_object(pc, object)) {
		object->start = object->end = 0;
		return NULL;
	}
	walker->met++;
	return object;
}

#ifdef HAS_JIT_TABLES

enum { MOST_REGIONS = 4096, MOST_TABLES = 1 << 16 };

static void read_jit_entry(const struct sframegen_jit_fre *entry, struct rule *rule)
{
	uint8_t info = __atomic_load_n(&entry->info, __ATOMIC_ACQUIRE);

	if (info & (SFRAMEGEN_JIT_REMOVED | 0x40))
		return;
	rule->kind = info & SFRAMEGEN_JIT_OUTERMOST ? RULE_OUTERMOST : info & SFRAMEGEN_JIT_SIGNAL ? RULE_SIGNAL : RULE;
	rule->cfa = (struct value){ .base = info & SFRAMEGEN_JIT_CFA_SP ? SP : FP, .offset = entry->cfa_off };
	rule->ra = rule->fp = (struct value){ .base = KEPT };
	if (info & SFRAMEGEN_JIT_RA_SAVED)
		rule->ra = (struct value){ .base = BASE_CFA, .offset = entry->ra_off, .deref = true };
	if (info & SFRAMEGEN_JIT_FP_SAVED)
		rule->fp = (struct value){ .base = BASE_CFA, .offset = entry->fp_off, .deref = true };
}

static void search_jit_tables(const struct sframegen_jit_region *region, uint64_t offset, struct rule *rule)
{
	const struct sframegen_jit_table *table = (const void *)(uintptr_t)region->unwind_head;

	for (int tables = 0; table && tables < MOST_TABLES; tables++) {
		const struct sframegen_jit_table *next = (const void *)(uintptr_t)__atomic_load_n(&table->next, __ATOMIC_ACQUIRE);
		const struct sframegen_jit_fre *entries = (const void *)(table + 1);
		size_t low = 0, high = __atomic_load_n(&table->used_len, __ATOMIC_ACQUIRE) / sizeof *entries;

		if (table->fre_stride != sizeof *entries)
			return;
		while (low < high) { /* the first one after the offset */
			size_t middle = low + (high - low) / 2;

			if (entries[middle].ip_off <= offset)
				low = middle + 1;
			else
				high = middle;
		}
		if (low != 0 && offset - entries[low - 1].ip_off < entries[low - 1].size) {
			read_jit_entry(&entries[low - 1], rule);
			return;
		}
		table = next;
	}
}

/* The process itself writes these tables (docs/jit.md). They cannot go while their code has a frame on this stack. */
static void find_jit_rule(uintptr_t pc, struct rule *rule)
{
	const struct sframegen_jit_region *region = (const void *)(uintptr_t)__atomic_load_n(&__sframegen_jit_tables.first, __ATOMIC_ACQUIRE);

	for (int regions = 0; region && regions < MOST_REGIONS; regions++) {
		uint64_t serial = __atomic_load_n(&region->serial, __ATOMIC_ACQUIRE);

		if (serial % 2 && pc >= region->text_start && pc < region->text_end) {
			rule->kind = RULE_UNKNOWN;
			search_jit_tables(region, pc - region->text_start, rule);
			if (__atomic_load_n(&region->serial, __ATOMIC_ACQUIRE) != serial)
				rule->kind = RULE_UNKNOWN;
			return;
		}
		region = (const void *)(uintptr_t)region->next;
	}
}

#else
static void find_jit_rule(uintptr_t pc, struct rule *rule) { (void)pc, (void)rule; }
#endif

static void rule_in(const struct object *object, uintptr_t pc, bool is_return, struct rule *rule)
{
	rule->kind = object && object->has == BAD_SECTION ? RULE_DAMAGED : RULE_NONE;
	if (object && object->has == HAS_SECTION)
		find_rule(&object->section, pc, is_return, rule);
	else if (!object)
		find_jit_rule(pc - is_return, rule);
}

/* What the cache has for a PC. It is right if `owner` is 0, a pinned object, or the identity of an object that is loaded now: then the PC
   is in that object, because it was when the rule was found there. */
struct cached {
	packed_rule rule;
	uint64_t owner;
};

static inline struct cached read_cache(uintptr_t pc)
{
	unsigned index = cache_index(pc);
	uint64_t key = atomic_load_explicit(&cache[index].key, memory_order_relaxed);
	packed_rule rule = atomic_load_explicit(&cache[index].rule, memory_order_relaxed);

	return (struct cached){ .rule = rule, .owner = key ^ spread(rule) ^ pc };
}

static packed_rule look_up(struct walker *walker, struct rule *rule)
{
	uintptr_t pc = walker->now.pc - !is_exact(walker);
	struct cached found = read_cache(pc);
	struct object *object;
	unsigned index = cache_index(pc);
	packed_rule packed;

	if (found.owner == 0 && (found.rule & PACKED_KIND) != PACKED_OTHER)
		return found.rule;
	object = meet(walker, pc);
	if (object && object->identity > NOT_CACHED) {
		walker->now.identity = object->identity;
		if (found.owner == object->identity && (found.rule & PACKED_KIND) != PACKED_OTHER)
			return found.rule;
	}
	rule_in(object, walker->now.pc, !is_exact(walker), rule);
	packed = pack(rule);
	if (object && object->identity != NOT_CACHED) { /* code made at run time is in no object */
		atomic_store_explicit(&cache[index].key, pc ^ object->identity ^ spread(packed), memory_order_relaxed);
		atomic_store_explicit(&cache[index].rule, packed, memory_order_relaxed);
	}
	return packed;
}

/* --- Steps ------------------------------------------------------------------------------------------------------------------------ */

enum { GOES_ON = -1 }; /* else an sframe_end */

static bool register_of(const struct walker *walker, unsigned number, uintptr_t *value)
{
	if (number == SP)
		*value = walker->now.sp;
	else if (number == FP)
		*value = walker->now.fp;
	else
		return walker->registers && saved_register(walker->registers, number, value);
	return true;
}

static int evaluate(struct walker *walker, const struct value *from, uintptr_t cfa, uintptr_t *value)
{
	uintptr_t base = cfa;

	if (from->base != BASE_CFA && !register_of(walker, from->base, &base))
		return SFRAME_NO_RULE;
	base += (uintptr_t)(intptr_t)from->offset;
	if (from->deref && !is_known(&walker->now, base) && !reach(walker, base))
		return SFRAME_UNREADABLE;
	*value = from->deref ? load(base) : base;
	return GOES_ON;
}

/* The interrupted code may be on another stack, so what was known of this one does not help. */
static int go_to_interrupted(struct walker *walker, uintptr_t at)
{
	const ucontext_t *context = (const ucontext_t *)at;

	for (uintptr_t word = at; word < at + offsetof(ucontext_t, uc_sigmask); word += 8)
		if (!is_known(&walker->now, word) && !reach(walker, word))
			return SFRAME_UNREADABLE;
	walker->registers = context;
	walker->now.pc = saved_pc(context);
	saved_register(context, SP, &walker->now.sp);
	saved_register(context, FP, &walker->now.fp);
	walker->now.flags = SFRAME_EXACT;
	return walker->now.pc == 0 ? SFRAME_OUTERMOST : GOES_ON;
}

static int apply(struct walker *walker, const struct rule *rule, uintptr_t *cfa)
{
	struct value ra_place = rule->ra, fp_place = rule->fp;
	uintptr_t ra, fp, sp;
	int end;

	if (ra_place.base == KEPT)
		ra_place.base = RA;
	if (fp_place.base == KEPT)
		fp_place.base = FP;
	end = evaluate(walker, &rule->cfa, 0, cfa);
	if (end == GOES_ON)
		end = evaluate(walker, &ra_place, *cfa, &ra);
	if (end == GOES_ON)
		end = evaluate(walker, &fp_place, *cfa, &fp);
	if (end != GOES_ON)
		return end;
	sp = *cfa + (uintptr_t)SP_OFFSET;
	ra = without_signature(ra);
	if (rule->kind == RULE_SIGNAL) {
		end = go_to_interrupted(walker, walker->now.sp + CONTEXT_AT);
		return end == GOES_ON && walker->now.pc != ra ? SFRAME_NO_RULE : end;
	}
	if (sp < walker->now.sp || (sp == walker->now.sp && !is_exact(walker)))
		return SFRAME_NOT_ASCENDING;
	walker->now.pc = ra;
	walker->now.sp = sp;
	walker->now.fp = fp;
	walker->now.flags = 0;
	walker->registers = NULL;
	return ra == 0 ? SFRAME_OUTERMOST : GOES_ON;
}

/* The code that a signal handler returns to needs no rule: it is known by its bytes. */
WITHOUT_SANITIZERS static bool is_trampoline(uintptr_t pc)
{
	const volatile uint8_t *code = (const volatile uint8_t *)pc;
	size_t at = 0;

	if (!is_readable(pc) || !is_readable(pc + sizeof trampoline - 1))
		return false;
	while (at < sizeof trampoline && code[at] == trampoline[at])
		at++;
	return at == sizeof trampoline;
}

enum { GUESS_REACH = 1 << 16 }; /* bytes: a frame pointer to a frame farther up may lead to another stack */

/* A frame pointer, unless it is anything else: the frame that it points to has to be near, and to return to code after a call. */
static int guess(struct walker *walker, uintptr_t *cfa)
{
	uintptr_t record = walker->now.fp, fp, ra;
	struct object *object;

	if (MACHINE_ABI == 4 || record - walker->now.sp >= GUESS_REACH || record % 16 != 0 || !reach(walker, record) || !reach(walker, record + 8))
		return SFRAME_NO_RULE;
	fp = load(record);
	ra = without_signature(load(record + 8));
	object = meet(walker, ra - 1);
	if (!object || !is_code(object, ra - 1) || !is_code(object, ra - CALL_SIZE) || !has_readable_call(ra) ||
	    !ends_call((const uint8_t *)ra))
		return SFRAME_NO_RULE;
	*cfa = record + 16;
	walker->now.pc = ra;
	walker->now.sp = record + 16;
	walker->now.fp = fp;
	walker->registers = NULL;
	walker->now.flags = SFRAME_GUESS;
	return GOES_ON;
}

static struct rule unpacked(packed_rule packed)
{
	struct rule rule = { .cfa = { .base = packed & PACKED_BASE_FP ? FP : SP, .offset = cfa_offset(packed) },
		.ra = { .base = BASE_CFA, .offset = ra_offset(packed), .deref = true }, .fp = { .base = KEPT } };

	if (packed & PACKED_FP_SAVED)
		rule.fp = (struct value){ .base = BASE_CFA, .offset = fp_offset(packed), .deref = true };
	return rule;
}

/* Any step to the caller's frame. */
__attribute__((noinline)) static int step(struct walker *walker)
{
	uintptr_t *cfa = &walker->cfa;
	struct rule rule;
	packed_rule packed = look_up(walker, &rule);
	struct object *object;
	int end;

	*cfa = 0;
	switch (packed & PACKED_KIND) {
	case PACKED_RULE:
		if (MACHINE_ABI == 2 && (walker->now.flags & SFRAME_GUESS) && !(packed & PACKED_BASE_FP))
			return guess(walker, cfa); /* a frame record says where the caller's is, but not its SP */
		rule = unpacked(packed);
		break;
	case PACKED_OUTERMOST:
		return SFRAME_OUTERMOST;
	case PACKED_NONE:
		return is_trampoline(walker->now.pc) ? go_to_interrupted(walker, walker->now.sp + CONTEXT_AT) : guess(walker, cfa);
	default:
		break;
	}
	if (rule.kind == RULE_DAMAGED || rule.kind == RULE_UNKNOWN)
		return rule.kind == RULE_DAMAGED ? SFRAME_DAMAGED : SFRAME_NO_RULE;
	end = apply(walker, &rule, cfa);
	if (rule.kind == RULE_PUT) { /* if it does not return to code, nobody called it */
		object = end == GOES_ON ? meet(walker, walker->now.pc - 1) : NULL;
		return object && is_code(object, walker->now.pc - 1) ? GOES_ON : SFRAME_OUTERMOST;
	}
	return end == SFRAME_NO_RULE ? guess(walker, cfa) : end; /* nobody knows the register that the rule needs */
}

/* The step of most frames: the rule is in the cache, and what it reads is known to be readable. Returns false for all others, which
   step() does from the begin. */
static inline bool quick_step(struct position *now, uintptr_t *cfa)
{
	struct cached cached = read_cache(now->pc - 1);
	packed_rule rule = cached.rule;
	uintptr_t at = (rule & PACKED_BASE_FP ? now->fp : now->sp) + (uintptr_t)(intptr_t)cfa_offset(rule);
	uintptr_t ra_at = at + (uintptr_t)(intptr_t)ra_offset(rule), fp_at = at + (uintptr_t)(intptr_t)fp_offset(rule), ra;

	if ((cached.owner != 0 && cached.owner != now->identity) || (rule & PACKED_KIND) != PACKED_RULE || now->flags != 0)
		return false;
	if (at + (uintptr_t)SP_OFFSET <= now->sp || !is_known(now, ra_at) || !is_known(now, fp_at))
		return false;
	ra = without_signature(load(ra_at));
	if (ra == 0)
		return false;
	now->fp ^= (now->fp ^ load(fp_at)) & -(uintptr_t)(rule / PACKED_FP_SAVED % 2); /* which frames save it nobody can predict */
	now->sp = at + (uintptr_t)SP_OFFSET;
	now->pc = ra;
	*cfa = at;
	return true;
}

/* Writes the frames to one of the two arrays; the other one is NULL. A copy of the position, whose address nobody takes, stays in the
   machine's registers. */
__attribute__((always_inline)) static inline int walk(struct walker *walker, void **pcs, struct sframe_frame *frames, int size,
						      enum sframe_end *end)
{
	struct position now;
	int count = 0, state = GOES_ON;

	walker->first_page = walker->now.low = walker->now.high = (walker->now.sp - RED_ZONE) & -(uintptr_t)PAGE;
	if (in_own_stack(walker->now.low))
		walker->now.high = own_stack.high;
	now = walker->now;
	while (state == GOES_ON && count < size) {
		uintptr_t cfa = 0;

		if (pcs)
			pcs[count] = (void *)now.pc;
		else
			frames[count] = (struct sframe_frame){ .pc = (void *)now.pc, .flags = now.flags };
		if (!quick_step(&now, &cfa)) {
			walker->now = now;
			state = step(walker);
			cfa = walker->cfa;
			now = walker->now;
		}
		if (frames)
			frames[count].cfa = (void *)cfa;
		count++;
	}
	walker->now = now;
	if (!in_own_stack(now.low))
		keep_own_stack(walker);
	*end = state == GOES_ON ? SFRAME_FULL : (enum sframe_end)state;
	return count;
}

/* --- The public functions --------------------------------------------------------------------------------------------------------- */

/* The registers of the caller of the function that this one is inlined into: that function's own code needs no rule. */
__attribute__((always_inline)) static inline void start_at_caller(struct walker *walker)
{
#if defined(__s390x__)
	__asm__ volatile("lgr %0, %%r11" : "=d"(walker->now.fp));
#else
	walker->now.fp = *(uintptr_t *)__builtin_frame_address(0);
#endif
	walker->now.pc = without_signature((uintptr_t)__builtin_return_address(0));
	walker->now.sp = (uintptr_t)__builtin_dwarf_cfa() + (uintptr_t)SP_OFFSET;
	walker->registers = NULL;
	walker->now.flags = 0;
	walker->met = 0;
	walker->now.identity = 0;
}

static void start_at_interrupted(struct walker *walker, const ucontext_t *context)
{
	walker->now.pc = saved_pc(context);
	saved_register(context, SP, &walker->now.sp);
	saved_register(context, FP, &walker->now.fp);
	walker->registers = context;
	walker->now.flags = SFRAME_EXACT;
	walker->met = 0;
	walker->now.identity = 0;
}

__attribute__((noinline)) int sframe_backtrace(void **buffer, int size)
{
	struct walker walker;
	enum sframe_end end;

	start_at_caller(&walker);
	return walk(&walker, buffer, NULL, size, &end);
}

int sframe_backtrace_from(const void *ucontext, void **buffer, int size)
{
	struct walker walker;
	enum sframe_end end;

	start_at_interrupted(&walker, ucontext);
	return walk(&walker, buffer, NULL, size, &end);
}

__attribute__((noinline)) int sframe_backtrace_frames(const void *ucontext, struct sframe_frame *frames, int size, enum sframe_end *end)
{
	struct walker walker;
	enum sframe_end unused;

	if (ucontext)
		start_at_interrupted(&walker, ucontext);
	else
		start_at_caller(&walker);
	return walk(&walker, NULL, frames, size, end ? end : &unused);
}

const char *sframe_end_text(enum sframe_end end)
{
	switch (end) {
	case SFRAME_OUTERMOST:
		return "the outermost frame";
	case SFRAME_FULL:
		return "there may be more frames than there was room for";
	case SFRAME_NO_RULE:
		return "no rule describes this code, and no frame pointer leads on";
	case SFRAME_UNREADABLE:
		return "memory that the rule reads cannot be read";
	case SFRAME_DAMAGED:
		return "the SFrame section is damaged";
	case SFRAME_NOT_ASCENDING:
		return "the caller's frame would not be nearer to the base of the stack";
	}
	return "unknown";
}

/* --- Detached sections: not for signal handlers -------------------------------------------------------------------------------------
   The trust rules are those of docs/detached.md. A file is copied, not mapped: whoever truncates it later does no harm. */

enum { MOST_BYTES = 1 << 30, SECTION_TYPE = 0x6ffffff4 };

/* Older C libraries do not export fstat; on these machines the kernel's structure is theirs. */
static bool find_status(int opened, struct stat *status) { return system_call(SYS_fstat, opened, (uintptr_t)status, 0, 0) == 0; }

/* Opens DIRECTORY/.build-id/xx/yyyy.sframe; below the directory there are no symbolic links. -1 if it cannot be opened or trusted. */
static int open_stored(const char *directory, const uint8_t *id, size_t size, struct stat *file)
{
	static const char digits[] = "0123456789abcdef";
	char first[3] = { digits[id[0] >> 4], digits[id[0] & 15], 0 }, rest[2 * 64 + sizeof ".sframe"];
	const char *names[] = { directory, ".build-id", first, rest };
	struct stat of_directory;
	int opened = AT_FDCWD;

	for (size_t at = 1; at < size; at++) {
		rest[2 * at - 2] = digits[id[at] >> 4];
		rest[2 * at - 1] = digits[id[at] & 15];
	}
	memcpy(rest + 2 * size - 2, ".sframe", sizeof ".sframe");
	for (int at = 0; at < 4; at++) {
		int how = at == 3 ? O_RDONLY | O_NONBLOCK | O_NOFOLLOW : at == 0 ? O_PATH | O_DIRECTORY : O_PATH | O_DIRECTORY | O_NOFOLLOW;
		int next = openat(opened, names[at], how | O_CLOEXEC);

		if (opened != AT_FDCWD)
			close(opened);
		if (next < 0)
			return -1;
		opened = next;
		if (at == 0 && !find_status(opened, &of_directory))
			break;
		if (at < 3)
			continue;
		if (find_status(opened, file) && S_ISREG(file->st_mode) && file->st_size > 0 && file->st_size < MOST_BYTES &&
		    (file->st_uid == 0 || file->st_uid == geteuid() || file->st_uid == of_directory.st_uid) && !(file->st_mode & S_IWOTH) &&
		    !(geteuid() == 0 && (file->st_mode & S_IWGRP) && file->st_gid != 0))
			return opened;
	}
	close(opened);
	return -1;
}

/* Are the PT_LOADs the same? */
static bool has_same_layout(const struct object *object, const ElfW(Phdr) *headers, unsigned count)
{
	unsigned at = 0;

	for (unsigned number = 0; number < object->header_count; number++) {
		const ElfW(Phdr) *one = &object->headers[number];

		if (one->p_type != PT_LOAD)
			continue;
		while (at < count && headers[at].p_type != PT_LOAD)
			at++;
		if (at == count || headers[at].p_flags != one->p_flags || headers[at].p_offset != one->p_offset ||
		    headers[at].p_vaddr != one->p_vaddr || headers[at].p_filesz != one->p_filesz || headers[at].p_memsz != one->p_memsz)
			return false;
		at++;
	}
	while (at < count && headers[at].p_type != PT_LOAD)
		at++;
	return at == count;
}

/* Finds the section in a file whose bytes are all here. The file says for which build-id it is. */
static bool open_file(const uint8_t *bytes, size_t size, const struct object *object, const uint8_t *id, size_t id_size, struct section *found)
{
	const ElfW(Ehdr) *file = (const ElfW(Ehdr) *)(const void *)bytes;
	bool is_for_object = false, has_section = false;

	if (size < sizeof *file || memcmp(file->e_ident, ELFMAG, SELFMAG) != 0 || file->e_phoff > size || file->e_shoff > size ||
	    file->e_phoff % 8 || file->e_shoff % 8 || file->e_phnum > (size - file->e_phoff) / sizeof(ElfW(Phdr)) ||
	    file->e_shnum > (size - file->e_shoff) / sizeof(ElfW(Shdr)) ||
	    !has_same_layout(object, (const ElfW(Phdr) *)(const void *)(bytes + file->e_phoff), file->e_phnum))
		return false;
	for (unsigned number = 0; number < file->e_shnum; number++) {
		const ElfW(Shdr) *part = (const ElfW(Shdr) *)(const void *)(bytes + file->e_shoff) + number;
		const uint8_t *start = bytes + part->sh_offset;

		if (part->sh_offset > size || part->sh_size > size - part->sh_offset)
			continue;
		if (part->sh_type == SHT_NOTE && part->sh_size >= 16 + id_size && load32(start) == 4 && load32(start + 4) == id_size)
			is_for_object |= load32(start + 8) == NT_GNU_BUILD_ID && memcmp(start + 16, id, id_size) == 0;
		if (part->sh_type == SECTION_TYPE && !(part->sh_flags & SHF_COMPRESSED))
			has_section = open_section(start, part->sh_size, object->bias + part->sh_addr, found);
	}
	return is_for_object && has_section;
}

static bool read_stored(const char *directory, const struct object *object, struct section *found)
{
	const uint8_t *id;
	size_t size = find_build_id(object, &id), done = 0;
	struct stat file;
	int opened = size > 1 && size <= 64 ? open_stored(directory, id, size, &file) : -1;
	uint8_t *bytes;
	ssize_t count = 1;

	if (opened < 0)
		return false;
	bytes = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	while (bytes != MAP_FAILED && count > 0 && done < (size_t)file.st_size) {
		count = read(opened, bytes + done, (size_t)file.st_size - done);
		done += count > 0 ? (size_t)count : 0;
	}
	close(opened);
	if (bytes == MAP_FAILED)
		return false;
	mprotect(bytes, (size_t)file.st_size, PROT_READ);
	if (open_file(bytes, done, object, id, size, found))
		return true;
	munmap(bytes, (size_t)file.st_size);
	return false;
}

static bool add_detached(uint64_t identity, const struct section *section)
{
	for (unsigned number = 0; number < MOST_DETACHED; number++) {
		unsigned at = (unsigned)(identity + number) % MOST_DETACHED;
		uint64_t none = 0;

		if (!atomic_compare_exchange_strong(&detached[at].identity, &none, NOT_CACHED))
			continue;
		detached[at].section = *section;
		atomic_store_explicit(&detached[at].identity, identity, memory_order_release);
		atomic_store_explicit(&has_detached, true, memory_order_release);
		return true;
	}
	return false;
}

static int prepare_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	const char *path = getenv("SFRAMEGEN_PATH");
	int *added = argument;
	struct object object;
	struct section section;

	(void)size;
	if (!describe(&object, info->dlpi_phdr, info->dlpi_phnum, info->dlpi_addr) || object.has != NO_SECTION ||
	    identity_of(&object) == NOT_CACHED)
		return 0;
	while (path && *path) {
		size_t length = strcspn(path, ":");
		char directory[PATH_MAX];

		if (length > 0 && length < sizeof directory) {
			memcpy(directory, path, length);
			directory[length] = 0;
			if (read_stored(directory, &object, &section)) {
				*added += add_detached(identity_of(&object), &section);
				return 0;
			}
		}
		path += length + (path[length] == ':');
	}
	return 0;
}

int sframe_backtrace_prepare(unsigned flags)
{
	int added = 0;

	if (flags != 0) {
		errno = EINVAL;
		return -1;
	}
	if (getauxval(AT_SECURE))
		return 0;
	dl_iterate_phdr(prepare_object, &added);
	for (unsigned at = 0; added && at < CACHE_ENTRIES; at++) /* forget what had no rules */
		atomic_store_explicit(&cache[at].key, 0, memory_order_relaxed);
	return added;
}
