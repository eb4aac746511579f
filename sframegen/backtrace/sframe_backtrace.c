// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Walks the stack of the calling thread with the SFrame sections that are mapped in this process.

   The way of a frame: its PC -> a rule, in most cases from the cache -> (CFA, return address, FP) -> the caller's PC, SP and FP. A PC that
   is not in the cache -> the object that is loaded there -> its section -> the function -> the row -> the rule, into the cache. This file
   has the cache and the steps; the others, each of one subject, are a part of it:

   machines.h            registers, calls, what is readable
   sections.h            a section and a PC -> the rule
   loaded_objects.h      a PC -> the program or library
   detached_sections.h   sections that are files of their own, found before they are needed
   jit_tables.h          rules of code that was made at run time

   Three things make this safe in a signal handler that may have interrupted anything, this code included. What is written for later walks
   (the cache, which objects are pinned, the bounds of the thread's stack) is valid at each moment, so that nobody waits for anybody.
   Memory is read only where it is known to be readable. And every number in a section is checked before it is used. */
#define _GNU_SOURCE
#include "sframe_backtrace.h"

#include "detached_sections.h"
#include "jit_tables.h"
#include "loaded_objects.h"
#include "machines.h"
#include "sections.h"

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
static inline unsigned cache_index(uintptr_t pc) { return pc / 4 % CACHE_ENTRIES; } /* fewer than 4 bytes hold no two calls, almost always */

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

static void open_object(struct object *object)
{
	const ElfW(Phdr) *part, *code = NULL;

	if (object->has != NOT_OPENED)
		return;
	part = find_header(object, PT_GNU_SFRAME);
	EACH_HEADER(load, PT_LOAD, object)
		if ((load->p_flags & (PF_R | PF_X)) == (PF_R | PF_X))
			code = load;
	if (part) {
		const uint8_t *bytes = segment_bytes(object, part);

		/* A file that is cut off ends before its section's last byte. */
		object->has = bytes && part->p_memsz != 0 && is_readable((uintptr_t)bytes + part->p_memsz - 1) &&
			open_section(bytes, part->p_memsz, (uintptr_t)bytes, &object->section) ? HAS_SECTION : BAD_SECTION;
	} else {
		object->has = find_detached(object) ? HAS_SECTION : NO_SECTION;
	}
	object->section.code_start = code ? object->bias + code->p_vaddr : UINTPTR_MAX;
	object->section.code_end = code ? object->bias + code->p_vaddr + code->p_filesz : 0;
}

static void rule_in(struct object *object, uintptr_t pc, bool is_return, struct rule *rule)
{
	if (object)
		open_object(object);
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
	for (unsigned at = 0; added && at < CACHE_ENTRIES; at++) /* forget what had no rules; pages that nobody has written stay so */
		if (atomic_load_explicit(&cache[at].key, memory_order_relaxed) != 0)
			atomic_store_explicit(&cache[at].key, 0, memory_order_relaxed);
	return added;
}
