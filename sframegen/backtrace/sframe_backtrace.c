// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Walks the stack of the calling thread with the SFrame sections that are mapped in this process.

   A step takes the rule for a frame's PC, in most cases from the cache, and computes the CFA, return address and FP, which are the caller's
   SP, PC and FP. If the PC is not in the cache, the object that is loaded there is found, then its section, the function, the row and the
   rule, which goes into the cache. This file has the cache and the steps; it includes:

   machines.h            registers, calls, which memory is readable
   sections.h            finds the rule for a PC in a section
   loaded_objects.h      finds the program or library that contains a PC
   detached_sections.h   reads sections that are files of their own, before they are needed
   jit_tables.h          finds rules of code that was made at run time

   Three things make this safe in a signal handler that may have interrupted anything, this code included. Everything that is written for
   later walks (the cache, which objects are pinned, the bounds of the thread's stack) is valid at each moment, so that no thread waits.
   Memory is read only if it is known to be readable. And every number in a section is checked before it is used. */
#define _GNU_SOURCE
#include "sframe_backtrace.h"

#include "detached_sections.h" /* and the others, which it includes */
#include "jit_tables.h"

/* --- Memory ----------------------------------------------------------------------------------------------------------------------- */

enum { MAX_STACK_STEP = 64 * PAGE, MAX_STACK_TOP_STEP = 16 * PAGE, RED_ZONE = 128 };

/* The part of this thread's own stack that is known to be readable. It stays readable as long as the thread and this variable live. */
static __thread struct { uintptr_t low, high; } own_stack __attribute__((tls_model("initial-exec")));

/* A frame of a walk. The memory from `low` to `high` is known to be readable; cached rules of the object with this identity are valid. */
struct position {
	uintptr_t pc, sp, fp;
	uintptr_t low, high;
	uint64_t identity;
	unsigned flags; /* SFRAME_EXACT, SFRAME_GUESS */
};

struct walker {
	struct position now;
	const ucontext_t *registers; /* the frame's registers if it was interrupted, else NULL */
	uintptr_t first_page; /* of the stack, where the walk begins */
	uintptr_t cfa; /* found by step() */
	unsigned objects_found;
	struct object objects[8]; /* the last that were found */
};

static inline bool is_exact(const struct walker *walker) { return walker->now.flags & SFRAME_EXACT; }

static inline bool is_known(const struct position *now, uintptr_t at) { return at - now->low < now->high - now->low && at % 8 == 0; }

static bool in_own_stack(uintptr_t at) { return own_stack.low != 0 && at >= own_stack.low && at < own_stack.high; }

/* Makes the word at this address known to be readable. The known range grows upwards with the walk, and starts anew for addresses farther
   away. Of the own stack, only the part above SP is known, because a runtime may unmap the pages below, and map them again. */
__attribute__((noinline)) static bool make_known(struct walker *walker, uintptr_t at)
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
	if (page - walker->now.high < MAX_STACK_STEP) {
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

/* Returns an address above this thread's stack: the kernel puts random bytes there for the first thread, the C library its thread data for
   others. The thread data of the first one is among the libraries, where a coroutine's stack may lie below it. After fork in another
   thread, the stack of the child is not found. */
static uintptr_t find_stack_top(void)
{
	bool is_first = system_call(SYS_getpid, 0, 0, 0, 0) == system_call(SYS_gettid, 0, 0, 0, 0);

	return is_first ? getauxval(AT_RANDOM) : thread_pointer();
}

static void remember_own_stack(struct walker *walker)
{
	uintptr_t top;

	if (walker->now.low > walker->first_page)
		return; /* the known range does not begin with this stack's first page */
	if (own_stack.low == 0) {
		top = find_stack_top();
		if (top < walker->now.low || top - walker->now.low >= walker->now.high - walker->now.low + MAX_STACK_TOP_STEP)
			return;
		while (walker->now.high <= top && is_readable(walker->now.high))
			walker->now.high += PAGE;
		if (walker->now.high <= top)
			return;
		own_stack.high = walker->now.high;
		atomic_signal_fence(memory_order_seq_cst); /* a signal handler that runs now still finds no range */
		own_stack.low = walker->now.low;
	}
	if (walker->now.high == own_stack.high && walker->now.low < own_stack.low)
		own_stack.low = walker->now.low;
}

WITHOUT_SANITIZERS static inline uintptr_t load_word(uintptr_t at) { return *(const volatile uintptr_t *)at; }

/* --- The cache --------------------------------------------------------------------------------------------------------------------
   An entry is a rule and the key PC ^ identity ^ hash of the rule. A rule and a key of two different writers do not match, so that writers
   need no lock, and a signal handler may interrupt one. */

enum { CACHE_ENTRIES = 16384 };

static struct { _Atomic uint64_t key; _Atomic packed_rule rule; } cache[CACHE_ENTRIES];

static inline uint64_t hash_rule(packed_rule rule) { return (rule + 1) * 0x9e3779b97f4a7c15u; }
static inline unsigned cache_index(uintptr_t pc) { return pc / 4 % CACHE_ENTRIES; } /* two calls are almost always 4 bytes apart or more */

/* Returns the object that contains the PC, or NULL. Each is searched for only once in a walk, as long as few are needed. */
static struct object *find_object_once(struct walker *walker, uintptr_t pc)
{
	unsigned room = sizeof walker->objects / sizeof *walker->objects, count = walker->objects_found < room ? walker->objects_found : room;
	struct object *object;

	for (unsigned number = 0; number < count; number++)
		if (pc - walker->objects[number].start < walker->objects[number].end - walker->objects[number].start)
			return &walker->objects[number];
	object = &walker->objects[walker->objects_found % room];
	object->start = object->end = 0;
	if (!find_object(pc, object)) {
		object->start = object->end = 0;
		return NULL;
	}
	walker->objects_found++;
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

		/* If the file was truncated, the last byte of its section is not readable. */
		object->has = bytes && part->p_memsz != 0 && is_readable((uintptr_t)bytes + part->p_memsz - 1) &&
			open_section(bytes, part->p_memsz, (uintptr_t)bytes, &object->section) ? HAS_SECTION : BAD_SECTION;
	} else {
		object->has = find_detached(object) ? HAS_SECTION : NO_SECTION;
	}
	object->section.code_start = code ? object->bias + code->p_vaddr : UINTPTR_MAX;
	object->section.code_end = code ? object->bias + code->p_vaddr + code->p_filesz : 0;
}

static void find_uncached_rule(struct object *object, uintptr_t pc, bool is_return, struct rule *rule)
{
	if (object)
		open_object(object);
	rule->kind = object && object->has == BAD_SECTION ? RULE_DAMAGED : RULE_NONE;
	if (object && object->has == HAS_SECTION)
		find_rule(&object->section, pc, is_return, rule);
	else if (!object)
		find_jit_rule(pc - is_return, rule);
}

/* The entry of the cache for a PC. It is valid if `owner` is 0, for pinned objects, or the identity of an object that is loaded now: that
   contains the PC, because it did when the rule was found. */
struct cached {
	packed_rule rule;
	uint64_t owner;
};

static inline struct cached read_cache(uintptr_t pc)
{
	unsigned index = cache_index(pc);
	uint64_t key = atomic_load_explicit(&cache[index].key, memory_order_relaxed);
	packed_rule rule = atomic_load_explicit(&cache[index].rule, memory_order_relaxed);

	return (struct cached){ .rule = rule, .owner = key ^ hash_rule(rule) ^ pc };
}

static packed_rule look_up_rule(struct walker *walker, struct rule *rule)
{
	uintptr_t pc = walker->now.pc - !is_exact(walker);
	struct cached found = read_cache(pc);
	struct object *object;
	unsigned index = cache_index(pc);
	packed_rule packed;

	if (found.owner == 0 && (found.rule & PACKED_KIND) != PACKED_OTHER)
		return found.rule;
	object = find_object_once(walker, pc);
	if (object && object->identity > NOT_CACHED) {
		walker->now.identity = object->identity;
		if (found.owner == object->identity && (found.rule & PACKED_KIND) != PACKED_OTHER)
			return found.rule;
	}
	find_uncached_rule(object, walker->now.pc, !is_exact(walker), rule);
	packed = pack_rule(rule);
	if (object && object->identity != NOT_CACHED) { /* code made at run time is in no object */
		atomic_store_explicit(&cache[index].key, pc ^ object->identity ^ hash_rule(packed), memory_order_relaxed);
		atomic_store_explicit(&cache[index].rule, packed, memory_order_relaxed);
	}
	return packed;
}

/* --- Steps ------------------------------------------------------------------------------------------------------------------------ */

enum { CONTINUE_WALK = -1 }; /* the result of a step: this, or an sframe_end */

static bool read_register(const struct walker *walker, unsigned number, uintptr_t *value)
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

	if (from->base != BASE_CFA && !read_register(walker, from->base, &base))
		return SFRAME_NO_RULE;
	base += (uintptr_t)(intptr_t)from->offset;
	if (from->deref && !is_known(&walker->now, base) && !make_known(walker, base))
		return SFRAME_UNREADABLE;
	*value = from->deref ? load_word(base) : base;
	return CONTINUE_WALK;
}

/* Steps to the interrupted frame. It may be on another stack, so that each word of the context is made known to be readable. */
static int step_to_interrupted(struct walker *walker, uintptr_t at)
{
	const ucontext_t *context = (const ucontext_t *)at;

	for (uintptr_t word = at; word < at + offsetof(ucontext_t, uc_sigmask); word += 8)
		if (!is_known(&walker->now, word) && !make_known(walker, word))
			return SFRAME_UNREADABLE;
	walker->registers = context;
	walker->now.pc = saved_pc(context);
	saved_register(context, SP, &walker->now.sp);
	saved_register(context, FP, &walker->now.fp);
	walker->now.flags = SFRAME_EXACT;
	return walker->now.pc == 0 ? SFRAME_OUTERMOST : CONTINUE_WALK;
}

static int apply_rule(struct walker *walker, const struct rule *rule, uintptr_t *cfa)
{
	struct value ra_place = rule->ra, fp_place = rule->fp;
	uintptr_t ra, fp, sp;
	int end;

	if (ra_place.base == IN_REGISTER)
		ra_place.base = RA;
	if (fp_place.base == IN_REGISTER)
		fp_place.base = FP;
	end = evaluate(walker, &rule->cfa, 0, cfa);
	if (end == CONTINUE_WALK)
		end = evaluate(walker, &ra_place, *cfa, &ra);
	if (end == CONTINUE_WALK)
		end = evaluate(walker, &fp_place, *cfa, &fp);
	if (end != CONTINUE_WALK)
		return end;
	sp = *cfa + (uintptr_t)SP_OFFSET;
	ra = without_signature(ra);
	if (rule->kind == RULE_SIGNAL) {
		end = step_to_interrupted(walker, walker->now.sp + UCONTEXT_OFFSET);
		return end == CONTINUE_WALK && walker->now.pc != ra ? SFRAME_NO_RULE : end;
	}
	if (sp < walker->now.sp || (sp == walker->now.sp && !is_exact(walker)))
		return SFRAME_NOT_ASCENDING;
	walker->now.pc = ra;
	walker->now.sp = sp;
	walker->now.fp = fp;
	walker->now.flags = 0;
	walker->registers = NULL;
	return ra == 0 ? SFRAME_OUTERMOST : CONTINUE_WALK;
}

/* Returns true for the code that a signal handler returns to, which is recognised by its bytes and needs no rule. */
WITHOUT_SANITIZERS static bool is_sigreturn_code(uintptr_t pc)
{
	const volatile uint8_t *code = (const volatile uint8_t *)pc;
	size_t at = 0;

	if (!is_readable(pc) || !is_readable(pc + sizeof sigreturn_code - 1))
		return false;
	while (at < sizeof sigreturn_code && code[at] == sigreturn_code[at])
		at++;
	return at == sizeof sigreturn_code;
}

enum { GUESS_REACH = 1 << 16 }; /* bytes: a frame pointer that leads farther up may lead to another stack */

/* Steps with FP, a frame pointer or not (never on s390x): the frame that it points to must be near, and return to code after a call. */
static int guess_by_frame_pointer(struct walker *walker, uintptr_t *cfa)
{
	uintptr_t record = walker->now.fp, fp, ra;
	struct object *object;

	if (MACHINE_ABI == 4 || record - walker->now.sp >= GUESS_REACH || record % 16 != 0 || !make_known(walker, record) ||
	    !make_known(walker, record + 8))
		return SFRAME_NO_RULE;
	fp = load_word(record);
	ra = without_signature(load_word(record + 8));
	object = find_object_once(walker, ra - 1);
	if (!object || !is_code(object, ra - 1) || !is_code(object, ra - MAX_CALL_SIZE) || !has_readable_call(ra) ||
	    !ends_call((const uint8_t *)ra))
		return SFRAME_NO_RULE;
	*cfa = record + 16;
	walker->now.pc = ra;
	walker->now.sp = record + 16;
	walker->now.fp = fp;
	walker->registers = NULL;
	walker->now.flags = SFRAME_GUESS;
	return CONTINUE_WALK;
}

static struct rule unpack_rule(packed_rule packed)
{
	struct rule rule = { .cfa = { .base = packed & PACKED_BASE_FP ? FP : SP, .offset = cfa_offset(packed) },
		.ra = { .base = BASE_CFA, .offset = ra_offset(packed), .deref = true }, .fp = { .base = IN_REGISTER } };

	if (packed & PACKED_FP_SAVED)
		rule.fp = (struct value){ .base = BASE_CFA, .offset = fp_offset(packed), .deref = true };
	return rule;
}

/* Steps to the caller's frame, in every way there is. */
__attribute__((noinline)) static int step(struct walker *walker)
{
	uintptr_t *cfa = &walker->cfa;
	struct rule rule;
	packed_rule packed = look_up_rule(walker, &rule);
	struct object *object;
	int end;

	*cfa = 0;
	switch (packed & PACKED_KIND) {
	case PACKED_RULE:
		if (MACHINE_ABI == 2 && (walker->now.flags & SFRAME_GUESS) && !(packed & PACKED_BASE_FP))
			return guess_by_frame_pointer(walker, cfa); /* SP is not known after a guess: a frame record does not show it */
		rule = unpack_rule(packed);
		break;
	case PACKED_OUTERMOST:
		return SFRAME_OUTERMOST;
	case PACKED_NONE:
		return is_sigreturn_code(walker->now.pc) ? step_to_interrupted(walker, walker->now.sp + UCONTEXT_OFFSET)
							: guess_by_frame_pointer(walker, cfa);
	default:
		break;
	}
	if (rule.kind == RULE_DAMAGED || rule.kind == RULE_UNKNOWN)
		return rule.kind == RULE_DAMAGED ? SFRAME_DAMAGED : SFRAME_NO_RULE;
	end = apply_rule(walker, &rule, cfa);
	if (rule.kind == RULE_INJECTED) { /* a frame that does not return to code was not called, and is outermost */
		object = end == CONTINUE_WALK ? find_object_once(walker, walker->now.pc - 1) : NULL;
		return object && is_code(object, walker->now.pc - 1) ? CONTINUE_WALK : SFRAME_OUTERMOST;
	}
	return end == SFRAME_NO_RULE ? guess_by_frame_pointer(walker, cfa) : end; /* the register that the rule needs is not known */
}

/* The step of most frames, whose rule is in the cache and reads memory that is known to be readable. Returns false for all others, and
   changes nothing: step() then does the whole step. */
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
	ra = without_signature(load_word(ra_at));
	if (ra == 0)
		return false;
	now->fp ^= (now->fp ^ load_word(fp_at)) & -(uintptr_t)(rule / PACKED_FP_SAVED % 2); /* a branch would be unpredictable */
	now->sp = at + (uintptr_t)SP_OFFSET;
	now->pc = ra;
	*cfa = at;
	return true;
}

/* Writes the frames to one of the two arrays; the other one is NULL. `now` is a copy of the position that stays in the machine's registers,
   because only quick_step(), which is inlined, takes its address. */
__attribute__((always_inline)) static inline int walk(struct walker *walker, void **pcs, struct sframe_frame *frames, int size,
						      enum sframe_end *end)
{
	struct position now;
	int count = 0, state = CONTINUE_WALK;

	walker->first_page = walker->now.low = walker->now.high = (walker->now.sp - RED_ZONE) & -(uintptr_t)PAGE;
	if (in_own_stack(walker->now.low))
		walker->now.high = own_stack.high;
	now = walker->now;
	while (state == CONTINUE_WALK && count < size) {
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
		remember_own_stack(walker);
	*end = state == CONTINUE_WALK ? SFRAME_FULL : (enum sframe_end)state;
	return count;
}

/* --- The public functions --------------------------------------------------------------------------------------------------------- */

/* Starts with the registers of the caller of the function that this one is inlined into, whose own code then needs no rule. */
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
	walker->objects_found = 0;
	walker->now.identity = 0;
}

static void start_at_interrupted(struct walker *walker, const ucontext_t *context)
{
	walker->now.pc = saved_pc(context);
	saved_register(context, SP, &walker->now.sp);
	saved_register(context, FP, &walker->now.fp);
	walker->registers = context;
	walker->now.flags = SFRAME_EXACT;
	walker->objects_found = 0;
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
	case SFRAME_OUTERMOST: return "the outermost frame";
	case SFRAME_FULL: return "there may be more frames than there was room for";
	case SFRAME_NO_RULE: return "no rule describes this code, and no frame pointer leads on";
	case SFRAME_UNREADABLE: return "memory that the rule reads cannot be read";
	case SFRAME_DAMAGED: return "the SFrame section is damaged";
	case SFRAME_NOT_ASCENDING: return "the caller's frame would not be nearer to the base of the stack";
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
	for (unsigned at = 0; added && at < CACHE_ENTRIES; at++) /* drop entries made without the new rules; unwritten pages stay unwritten */
		if (atomic_load_explicit(&cache[at].key, memory_order_relaxed) != 0)
			atomic_store_explicit(&cache[at].key, 0, memory_order_relaxed);
	return added;
}
