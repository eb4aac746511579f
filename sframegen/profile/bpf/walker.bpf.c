// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Walks the user stacks of tasks, in the kernel, with decoded tables of SFrame sections: one run for each event, and for each task that
   leaves its CPU.

   A finished walk is counted, and its stack is sent through the ring buffer when it is counted for the first time. A walk that meets
   unknown code sends its registers and a copy of the stack, so that user space can finish it. The target's memory is not trusted: every
   read may fail, each caller's frame must lie above its callee's, and the number of frames has a limit. */
#include "kernel_types.h"
#include "machine.h"

char terms[] SECTION("license") = "GPL"; /* of the two licenses, the one that the kernel requires */

const volatile struct settings settings = {};
struct shared shared;

/* The numbers of entries here are placeholders: user space sets most of them before it loads the program. */
MAP(processes, MAP_HASH, 1, u32, struct process);
MAP(epochs, MAP_HASH, 1, u32, u32);
MAP(wanted, MAP_HASH, 1, u32, u8);
MAP(counts, MAP_HASH, 1, struct count_key, struct count);
MAP(more_counts, MAP_HASH, 1, struct count_key, struct count);
MAP(blocks, MAP_HASH, 1, u32, struct block);
MAP(memos, MAP_ARRAY, 1, u32, struct memo);
MAP(statistics, MAP_PERCPU_ARRAY, STATS, u32, u64);

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	NUMBER(map_flags, MAP_MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct span);
} spans SECTION(".maps");

struct {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, KERNEL_FILE);
	NUMBER(map_flags, MAP_MMAPABLE);
	TYPE(key, u32);
	TYPE(value, struct file);
} files SECTION(".maps");

struct table {
	NUMBER(type, MAP_ARRAY);
	NUMBER(max_entries, 1);
	NUMBER(map_flags, MAP_INNER | MAP_MMAPABLE);
	TYPE(key, u32);
	TYPE(value, u64);
};

struct {
	NUMBER(type, MAP_ARRAY_OF_MAPS);
	NUMBER(max_entries, KERNEL_FILE);
	TYPE(key, u32);
	struct table *values[];
} tables SECTION(".maps");

struct {
	NUMBER(type, MAP_RINGBUF);
	NUMBER(max_entries, 4096);
} ring SECTION(".maps");

/* The state of one walk, and its records. `low`: the caller's SP has to be above it. `noted`: the number of stack words in `notes`, on
   which the walk depended so far; more than REMEMBERED if the walk depended on anything else. */
struct sample {
	u64 busy, pc, known, low, hash;
	u64 registers[REGISTERS];
	u64 saved[SAVED_WORDS + 1];
	u32 first, count, last, exact, guessed, signals, copied, missing, noted, epoch;
	struct stack_word notes[REMEMBERED];
	u64 kernel[KERNEL_DEPTH + 1];
	struct stopped stopped;
	struct stack_record record;
	u64 words[MAX_FRAMES + STACK_BYTES / 8 + 4096 / 8]; /* the verifier takes each page as a whole */
};

/* Two elements for each CPU, because an event may come while a task leaves the CPU. An ordinary array, because the elements of a per-CPU
   array cannot be that large. */
MAP(samples, MAP_ARRAY, 1, u32, struct sample);

INLINE void add_statistic(u32 statistic, u64 number)
{
	u64 *value = map_lookup(&statistics, &statistic);

	if (value)
		__sync_fetch_and_add(value, number); /* atomic, because an event may interrupt this */
}

INLINE u32 new_epoch(void) { return __sync_fetch_and_add(&shared.last_epoch, 1) + 1; }

/* --- Look-ups -------------------------------------------------------------------------------------------------------------------- */

/* Returns the index of the last span that begins at or before an address; at least `first` + `count` if there is none. */
GLOBAL u32 last_span(u32 first, u32 count, u64 address)
{
	u32 low = first, high = first + count;

	for (u32 step = 0; step < 24 && low < high; step++) { /* 24: more than the binary logarithm of any number of spans */
		u32 middle = low + (high - low) / 2;
		struct span *span = map_lookup(&spans, &middle);

		if (!span)
			break;
		if (span->start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low > first ? low - 1 : first + count;
}

/* Returns the span of an address, 0 if there is none. The last span is tried first, because most callers are in the same file. */
INLINE struct span *span_at(struct sample *sample, u64 address)
{
	u32 number = sample->last;
	struct span *span = map_lookup(&spans, &number);

	if (span && address >= span->start && address < span->end)
		return span;
	number = last_span(sample->first, sample->count, address);
	span = number < sample->first + sample->count ? map_lookup(&spans, &number) : 0;
	if (!span || address < span->start || address >= span->end)
		return 0;
	sample->last = number;
	return span;
}

/* Copies an element of a table, which is an array map. Returns 0 if there is no such element. */
INLINE int table_element(void *table, u32 at, void *to)
{
	u64 *value = map_lookup(table, &at);

	if (value)
		*(u64 *)to = *value;
	return value != 0;
}

enum { FOUND = -1, RULE_NONE = -2, RULE_UNPROVEN = -3 }; /* results besides the END_ numbers */

/* Finds the rule of the code at a link-time address. Returns FOUND, RULE_NONE, RULE_UNPROVEN if a proof may still add one, or an END_. */
GLOBAL int find_rule(u32 number, u64 address, struct table_rule *rule)
{
	struct file *file = map_lookup(&files, &number);
	void *table = map_lookup(&tables, &number);
	u32 state;
	int found;

	if (!rule || !file)
		return END_DAMAGED_TABLE;
	state = *(volatile u32 *)&file->state;
	if (state == FILE_WITHOUT)
		return file->unproven ? RULE_UNPROVEN : RULE_NONE;
	if (state < FILE_READY || !table)
		return END_NO_TABLE;
	found = find_in_table(&file->places, table, address, rule);
	if (*(volatile u32 *)&file->state != state) /* the table was replaced during the search */
		return END_NO_TABLE;
	if (found == TABLE_NO_RULE)
		return file->unproven ? RULE_UNPROVEN : RULE_NONE;
	return found == TABLE_FOUND ? FOUND : END_DAMAGED_TABLE;
}

/* --- One frame ------------------------------------------------------------------------------------------------------------------- */

INLINE int read_word(u64 address, u64 *to) { return read_user(to, sizeof(*to), (void *)address) == 0; }

enum { NOT_NOTED = 1 << 20, NEAR = 4096 };

/* Reads a word of the stack on which the result of the walk depends. Returns 0 if it cannot be read. */
INLINE int read_noted_word(struct sample *sample, u64 address, u64 *to)
{
	u32 at = sample->noted;

	if (!read_word(address, to))
		return 0;
	if (address & 7)
		at = NOT_NOTED;
	if (at < REMEMBERED) {
		sample->notes[at].address = address;
		sample->notes[at].value = *to;
	}
	sample->noted = at + 1;
	return 1;
}

INLINE int is_known(struct sample *sample, u32 number) { return number < REGISTERS && (sample->known & BIT(number)); }

INLINE void push_frame(struct sample *sample, u64 frame)
{
	u32 at = sample->record.frames;

	if (at < MAX_FRAMES) {
		sample->words[at] = frame;
		sample->record.frames = at + 1;
		sample->hash = (sample->hash ^ frame) * 0x9e3779b97f4a7c15ull;
		sample->hash ^= sample->hash >> 32;
	}
}

/* Restores all registers from those that the kernel saved for the signal handler. Does nothing if the saved PC is not the expected one. */
INLINE void restore_interrupted_registers(struct sample *sample, u64 sp, u64 pc)
{
	u64 *saved = sample->saved;

	_Static_assert(CONTEXT_WORDS <= SAVED_WORDS + 1, "there is room for the saved context");
	if (read_user(saved, CONTEXT_WORDS * 8, (void *)(sp + CONTEXT)) || saved[CONTEXT_PC] != pc)
		return;
	copy_context(sample->registers, saved);
	sample->known = (1ull << GENERAL) - 1;
}

/* Is the frame record that ends at `cfa` on the same stack as `low`? It is not if it is far away, or if a page between cannot be read. */
GLOBAL int on_same_stack(u64 low, u64 cfa)
{
	u64 page = low & -4096ull;
	u8 unused;

	if (cfa < low || cfa - low > GUESS_REACH)
		return 0;
	for (u32 pages = 0; pages <= GUESS_REACH / 4096; pages++, page += 4096) {
		if (page >= cfa)
			break;
		if (read_user(&unused, sizeof(unused), (void *)page))
			return 0;
	}
	return 1;
}

/* Records the current frame and goes to its caller. Returns FOUND, or an END_. Does not record the frame if user space may know more.
   Finds the rule of the frame's code, or makes one: for a signal frame, for code that only returns, or, as a guess, from the frame pointer.
   Then computes the caller's CFA, return address and FP by the rule, checks them, and makes the caller the current frame. */
GLOBAL int step(struct sample *sample)
{
	struct table_rule rule = {};
	struct span *span;
	u64 code, pc, cfa, ra, fp, sp, packed, fp_known;
	u32 flags, starts, handled, guess = 0, guess_failed = END_GUESS_FAILED;
	int found;

	if (!sample)
		return END_DAMAGED_TABLE;
	pc = sample->pc;
	code = sample->exact ? pc : pc - 1;
	span = span_at(sample, code);
	if (!span)
		return END_NO_MAPPING;
	found = RULE_NONE;
	packed = code & ADDRESS_MASK;
	if (span->file != NO_FILE) {
		sample->missing = span->file;
		found = find_rule(span->file, code - span->bias, &rule);
		packed = ((u64)(span->file & KERNEL_FILE) << FILE_SHIFT) | ((code - span->bias) & ADDRESS_MASK);
	}
	/* In a new thread, the system call that created it returns 0. */
	starts = sample->exact && is_known(sample, 0) && sample->registers[0] == 0 && starts_thread(pc);
	if (found == RULE_UNPROVEN && starts)
		found = RULE_NONE;
	handled = (found == RULE_UNPROVEN || found == RULE_NONE) && is_known(sample, SP) && returns_from_signal(pc);
	if (found == RULE_UNPROVEN)
		found = handled ? RULE_NONE : END_NO_TABLE;
	if (found == END_NO_TABLE)
		return END_NO_TABLE;
	/* A return address that the kernel or a library has pushed does not follow a call, so that the frame is at that address itself. */
	if (!sample->exact && span->file != NO_FILE) {
		if (handled || (found == FOUND && (rule.flags & TABLE_SIGNAL)))
			packed++;
		else if ((found == RULE_NONE || (found == FOUND && (rule.flags & TABLE_OUTERMOST))) && ends_call(pc) == 0)
			packed++;
	}
	push_frame(sample, packed | (sample->guessed ? GUESSED : 0));
	if (starts)
		return END_OUTERMOST;
	if (found >= 0)
		return found;
	fp_known = is_known(sample, FP);
	if (found == FOUND && (rule.flags & TABLE_OUTERMOST))
		return rule.flags & TABLE_CFA_DEREF ? END_OTHER_STACK : END_OUTERMOST;
	if (found == RULE_NONE) {
		if (handled) {
			rule.cfa_register = SP, rule.cfa_offset = CONTEXT;
			rule.ra_offset = CONTEXT_PC * 8, rule.flags = TABLE_RA_DEREF | TABLE_SIGNAL;
		} else if (span->file == NO_FILE && is_known(sample, SP) && drops_a_word_and_returns(pc)) {
			rule.cfa_register = SP, rule.cfa_offset = 16, rule.ra_offset = -8, rule.flags = TABLE_RA_DEREF;
		} else {
			if (!fp_known)
				return END_NO_RULE;
			guess = 1;
		}
	} else if (!is_known(sample, rule.cfa_register) || ((rule.flags & TABLE_RA_REGISTER) && !is_known(sample, rule.ra_register))) {
		if (!fp_known)
			return END_UNKNOWN_REGISTER;
		guess = 1;
		guess_failed = END_UNKNOWN_REGISTER;
	}
	if (guess) {
		rule.cfa_register = FP, rule.cfa_offset = 16, rule.ra_offset = -8, rule.fp_offset = -16;
		rule.flags = TABLE_RA_DEREF | TABLE_FP | TABLE_FP_DEREF;
	}
	flags = rule.flags;
	/* A memo holds only stack words and the registers PC, SP, FP and LINK, so that no walk that needs more can be remembered. */
	if (guess || (flags & (TABLE_CFA_DEREF | TABLE_SIGNAL | TABLE_FP_REGISTER)) ||
	    (rule.cfa_register != SP && rule.cfa_register != FP) || ((flags & TABLE_RA_REGISTER) && rule.ra_register != LINK))
		sample->noted = NOT_NOTED;
	cfa = sample->registers[rule.cfa_register & (REGISTERS - 1)] + rule.cfa_offset;
	if (guess && !on_same_stack(sample->low, cfa))
		return guess_failed;
	if (flags & TABLE_CFA_DEREF) {
		if (!read_word(cfa, &cfa))
			return END_UNREADABLE;
		if (!(flags & TABLE_RA_REGISTER))
			cfa += rule.ra_register;
	}
	ra = cfa + rule.ra_offset;
	if (flags & TABLE_RA_REGISTER)
		ra = sample->registers[rule.ra_register & (REGISTERS - 1)] + rule.ra_offset;
	if ((flags & TABLE_RA_DEREF) && !read_noted_word(sample, ra, &ra))
		return guess ? guess_failed : END_UNREADABLE;
	ra &= settings.ra_mask;
	fp = sample->registers[FP];
	if (flags & TABLE_FP) {
		fp = cfa + rule.fp_offset;
		fp_known = 1;
		if (flags & TABLE_FP_REGISTER) {
			fp_known = is_known(sample, rule.fp_register);
			fp = sample->registers[rule.fp_register & (REGISTERS - 1)] + rule.fp_offset;
		}
		if (fp_known && (flags & TABLE_FP_DEREF) && !read_noted_word(sample, fp, &fp)) {
			fp_known = 0; /* not an end, because few callers need FP */
			sample->noted = NOT_NOTED;
		}
	}

	sp = sample->registers[SP];
	if (flags & TABLE_SIGNAL) { /* the interrupted code may be on another stack */
		u64 sp_known = is_known(sample, SP);

		if (++sample->signals > MAX_SIGNALS)
			return END_TOO_DEEP;
		sample->known = BIT(SP) | (fp_known ? BIT(FP) : 0);
		sample->registers[SP] = cfa;
		sample->registers[FP] = fp;
		if (sp_known)
			restore_interrupted_registers(sample, sp, ra);
		sample->low = sample->registers[SP];
	} else {
		if (cfa < sample->low || (cfa == sample->low && !sample->exact))
			return guess ? guess_failed : END_NOT_ASCENDING;
		sample->known = (guess && !FRAME_RECORD_GIVES_SP ? 0 : BIT(SP)) | (fp_known ? BIT(FP) : 0);
		sample->registers[SP] = cfa;
		sample->registers[FP] = fp;
		sample->low = cfa;
	}
	if (ra == 0)
		return guess ? guess_failed : END_NO_RETURN; /* a 0 found through a guessed FP proves nothing */
	if (guess) {
		span = span_at(sample, ra - 1);
		if ((cfa & 7) || !span || (span->file != NO_FILE && ends_call(ra) <= 0))
			return guess_failed;
	}
	sample->guessed = guess;
	sample->exact = (flags & TABLE_SIGNAL) != 0;
	sample->pc = ra;
	return FOUND;
}

/* --- Records --------------------------------------------------------------------------------------------------------------------- */

/* Copies the readable pages of the stack, from SP on, behind the frames. Unused pages of a large frame cannot be read; after MAX_GAP such
   pages, this stack has ended. */
GLOBAL int copy_stack(struct sample *sample)
{
	u64 from;

	if (!sample)
		return 0;
	from = sample->stopped.start;
	for (u32 page = 0; page < STACK_PAGES; page++) {
		u32 size = 4096 - (from & 4095), at = sample->record.frames, copied = sample->copied; /* locals: old verifiers forget limits */
		u64 pages = sample->stopped.pages;

		if (at > MAX_FRAMES || copied > STACK_BYTES - 4096 || (page >= MAX_GAP && pages >> (page - MAX_GAP) == 0))
			break;
		if (read_user((u8 *)&sample->words[at] + copied, size, (void *)from) == 0) {
			sample->stopped.pages = pages | 1ull << page;
			sample->copied = copied + size;
		} else if (page == 0) {
			break;
		}
		from += size;
	}
	return 0;
}

/* Returns where a copy begins: the red zone below SP is included, because the rule of a function that has just restored a register reads it
   there; but not the page before SP's, which may be unreadable. */
INLINE u64 copy_start(u64 sp)
{
	u64 page = sp & -4096ull, start = sp - RED_ZONE;

	return start < page ? page : start;
}

/* Sends the walk for user space to finish. Returns 0 if the ring buffer is full. */
INLINE int send_unfinished(struct sample *sample, int asleep)
{
	struct stopped *stopped = &sample->stopped;
	u32 size;

	stopped->type = RECORD_UNFINISHED;
	stopped->flags = (sample->exact ? STOPPED_EXACT : 0) | (sample->guessed ? STOPPED_GUESSED : 0) | (asleep ? STOPPED_ASLEEP : 0);
	stopped->pc = sample->pc;
	stopped->known = sample->known;
	stopped->start = copy_start(is_known(sample, SP) ? sample->registers[SP] : sample->low);
	for (u32 number = 0; number < REGISTERS; number++)
		stopped->registers[number] = sample->registers[number];
	sample->copied = stopped->pages = 0;
	if (!asleep)
		copy_stack(sample);
	size = sample->copied;
	stopped->size = size;
	stopped->file = sample->missing;
	size += sample->record.frames * 8;
	if (size > sizeof(sample->words) || ring_output(&ring, stopped, sizeof(*stopped) + sizeof(sample->record) + size, 0)) {
		add_statistic(STAT_RING_FULL, 1);
		return 0;
	}
	return 1;
}

INLINE int send_stack(struct sample *sample)
{
	u32 size = sample->record.frames * 8;

	if (size > MAX_FRAMES * 8)
		return 0;
	return ring_output(&ring, &sample->record, sizeof(sample->record) + size, 0) == 0;
}

/* Returns the count of a stack, which is added if there is none, after sending the stack unless `sample` is 0. Returns 0 if lost. */
INLINE struct count *find_or_add_count_in(void *map, struct count_key *key, struct sample *sample)
{
	struct count *count = map_lookup(map, key), none = {};

	if (count)
		return count;
	if (sample && !send_stack(sample)) {
		add_statistic(STAT_RING_FULL, 1);
		return 0;
	}
	map_update(map, key, &none, UPDATE_NEW);
	count = map_lookup(map, key);
	if (!count)
		add_statistic(STAT_COUNTS_FULL, 1);
	return count;
}

INLINE struct count *find_or_add_count(struct count_key *key, struct sample *sample)
{
	if (*(volatile u32 *)&shared.active)
		return find_or_add_count_in(&more_counts, key, sample);
	return find_or_add_count_in(&counts, key, sample);
}

INLINE int has_count(struct count_key *key)
{
	if (*(volatile u32 *)&shared.active)
		return map_lookup(&more_counts, key) != 0;
	return map_lookup(&counts, key) != 0;
}

INLINE void add_to_count(struct count *count, u64 time)
{
	__sync_fetch_and_add(&count->samples, 1);
	__sync_fetch_and_add(&count->nanoseconds, time);
}

/* --- A sample -------------------------------------------------------------------------------------------------------------------- */

/* Returns 1 if the spans of the process are known. If not, it gets an epoch, and its sample tells user space to read its mappings. */
INLINE int find_process(struct sample *sample, u32 tgid, u32 task_flags)
{
	struct process *process = map_lookup(&processes, &tgid);
	u32 *epoch = map_lookup(&epochs, &tgid);

	if (!epoch && !(task_flags & PF_EXITING)) {
		u32 fresh = new_epoch();

		if (map_update(&epochs, &tgid, &fresh, UPDATE_NEW))
			add_statistic(STAT_PROCESSES_FULL, 1);
	}
	if (!epoch || !process || process->epoch != *(volatile u32 *)epoch)
		return 0;
	sample->first = sample->last = process->first;
	sample->count = process->count;
	sample->epoch = process->epoch;
	return 1;
}

GLOBAL int walk(struct sample *sample)
{
	int end = END_TOO_DEEP;

	if (!sample)
		return END_DAMAGED_TABLE;
	for (u32 depth = 0; depth < MAX_DEPTH; depth++) {
		int found = step(sample);

		if (found >= 0) {
			end = found;
			break;
		}
	}
	return end;
}

INLINE void push_kernel_frames(void *context, struct sample *sample)
{
	long size = get_stack(context, sample->kernel, KERNEL_DEPTH * 8, 0);

	for (u32 at = 0; at < KERNEL_DEPTH; at++) {
		if ((long)at * 8 >= size)
			break;
		push_frame(sample, ((u64)KERNEL_FILE << FILE_SHIFT) | (sample->kernel[at] & ADDRESS_MASK));
	}
}

/* Is the current task to be sampled? */
INLINE int is_wanted(u32 tgid)
{
	char comm[COMM_BYTES];
	u8 *target;

	if (!settings.every_process) {
		target = map_lookup(&wanted, &tgid);
		if (!target || *target == WANTED_AFTER_EXEC)
			return 0;
	}
	if (settings.one_comm) {
		const volatile u64 *name = (const volatile u64 *)settings.comm;

		current_comm(comm, sizeof(comm));
		if (((u64 *)comm)[0] != name[0] || ((u64 *)comm)[1] != name[1])
			return 0;
	}
	return 1;
}

/* Returns an element of `samples` that no other run of a program on this CPU uses, and marks it as busy; 0 if there is none. */
INLINE struct sample *free_sample(void)
{
	u32 number = this_cpu();
	struct sample *sample = map_lookup(&samples, &number);

	if (!sample || __sync_val_compare_and_swap(&sample->busy, 0, 1)) {
		number += settings.cpus;
		sample = map_lookup(&samples, &number);
		if (!sample || __sync_val_compare_and_swap(&sample->busy, 0, 1)) {
			add_statistic(STAT_BUSY, 1);
			return 0;
		}
	}
	return sample;
}

INLINE void begin_sample(struct sample *sample, u32 tgid, u32 tid)
{
	sample->record.type = RECORD_STACK;
	sample->record.time = nanoseconds();
	sample->record.tgid = tgid;
	sample->record.tid = tid;
	sample->record.frames = 0;
	sample->hash = 0;
	sample->known = (1ull << GENERAL) - 1;
	sample->exact = 1;
	sample->guessed = sample->signals = sample->missing = sample->noted = 0;
}

enum { NO_REGISTERS, HAS_REGISTERS, OTHER_REGISTERS };

INLINE int read_user_registers(struct sample *sample, struct task_struct *task)
{
	if ((task->flags & PF_KTHREAD) || read_kernel(sample->saved, SAVED_WORDS * 8, (void *)user_registers(task)) ||
	    sample->saved[SAVED_PC] == 0)
		return NO_REGISTERS;
	if (is_32_bit(sample->saved[SAVED_MODE]))
		return OTHER_REGISTERS;
	copy_registers(sample->registers, sample->saved);
	sample->pc = sample->saved[SAVED_PC];
	sample->low = sample->registers[SP];
	return HAS_REGISTERS;
}

/* Walks the stack, and completes the record. Returns why the walk ended. */
GLOBAL u32 finish_walk(struct sample *sample, int has_registers)
{
	struct task_struct *task = current_task();
	u32 end = END_KERNEL_THREAD;
	u64 unused;

	if (!sample)
		return END_DAMAGED_TABLE;
	if (has_registers) {
		end = find_process(sample, sample->record.tgid, task->flags) ? walk(sample) : END_NO_PROCESS;
		if (end == END_UNREADABLE && !read_word(sample->registers[SP], &unused))
			end = END_STACK_GONE;
	}
	add_statistic(end < ENDS ? end : END_DAMAGED_TABLE, 1);
	sample->record.end = end;
	sample->hash ^= end;
	sample->record.hash = sample->hash;
	current_comm(sample->record.comm, COMM_BYTES);
	return end;
}

/* Has user space to finish a walk that ended like this? */
INLINE int is_unfinished(u32 end) { return end == END_NO_PROCESS || end == END_NO_MAPPING || end == END_NO_TABLE; }

INLINE void count_sample(struct sample *sample)
{
	struct count_key key = { .hash = sample->hash, .tgid = sample->record.tgid, .tid = sample->record.tid };
	struct count *count = find_or_add_count(&key, sample);

	if (count)
		add_to_count(count, settings.sample_time);
}

INLINE void walk_current_task(void *context, struct sample *sample, u32 tgid, u32 tid, int in_user)
{
	int found;

	begin_sample(sample, tgid, tid);
	if (!in_user) {
		add_statistic(STAT_KERNEL_MODE, 1);
		if (settings.kernel_frames)
			push_kernel_frames(context, sample);
	}
	found = read_user_registers(sample, current_task());
	if (found == OTHER_REGISTERS) {
		add_statistic(STAT_OTHER_ABI, 1);
		return;
	}
	if (is_unfinished(finish_walk(sample, found == HAS_REGISTERS))) {
		send_unfinished(sample, 0);
		return;
	}
	if (!settings.threads)
		sample->record.tid = 0;
	count_sample(sample);
}

INLINE void sample_task(void *context, int in_user)
{
	u64 id = current_pid_tgid();
	struct sample *sample;

	add_statistic(STAT_SAMPLES, 1);
	sample = free_sample();
	if (!sample)
		return;
	walk_current_task(context, sample, id >> 32, id, in_user);
	*(volatile u64 *)&sample->busy = 0;
}

SECTION("perf_event") int on_event(struct perf_context *context)
{
	u64 mode = *(volatile u64 *)&context->registers[SAVED_MODE];
	u32 tgid = current_pid_tgid() >> 32;

	if (tgid != 0 && is_wanted(tgid))
		sample_task(context, in_user_mode(mode));
	return 0;
}

/* --- Time off the CPU ------------------------------------------------------------------------------------------------------------ */

INLINE u32 find_off_cpu_reason(struct sample *sample, int has_registers, u32 state)
{
	int call = has_registers ? system_call(sample->saved) : -1;

	if (state & TASK_UNINTERRUPTIBLE) /* also a parent that waits until its child of vfork() executes a program */
		return call == CALL_CLONE || call == CALL_VFORK || call == CALL_CLONE3 ? OFF_SLEEPING : OFF_IO;
	return call == CALL_FUTEX || call == CALL_FUTEX_WAIT || call == CALL_FUTEX_WAITV ? OFF_LOCK : OFF_SLEEPING;
}

/* Returns the memo of a thread for the place where it waits, locked; 0 if another CPU uses it. */
INLINE struct memo *lock_memo(u32 tid, u64 pc)
{
	u32 at = ((pc ^ tid) * OFF_CPU_HASH_FACTOR >> 32) & (settings.memos - 1);
	struct memo *memo = map_lookup(&memos, &at);

	return memo && __sync_val_compare_and_swap(&memo->busy, 0, 1) == 0 ? memo : 0;
}

INLINE void release_memo(struct memo *memo) { *(volatile u64 *)&memo->busy = 0; }

/* Has the stack the words that the memo remembers? Most lie near to SP, so that one copy of NEAR bytes is quicker than many reads. */
GLOBAL int has_same_words(struct memo *memo, struct sample *sample)
{
	u64 sp, value, size;

	if (!memo || !sample || memo->number == 0 || memo->number > REMEMBERED)
		return 0;
	sp = memo->registers[1];
	size = memo->words[(memo->number - 1) & 63].address + 8 - sp;
	if (size > NEAR || read_user(sample->words, size, (void *)sp))
		size = 0;
	for (u32 at = 0; at < REMEMBERED; at++) {
		u64 offset;

		if (at >= memo->number)
			break;
		offset = memo->words[at].address - sp;
		if (offset < size && offset < NEAR)
			value = sample->words[offset / 8];
		else if (!read_word(memo->words[at].address, &value))
			return 0;
		if (value != memo->words[at].value)
			return 0;
	}
	return 1;
}

/* Returns the hash of the stack, without the reason, if it is the same as when the thread last left the CPU here; otherwise 0. */
INLINE u64 find_remembered_hash(struct sample *sample)
{
	u32 *epoch = map_lookup(&epochs, &sample->record.tgid);
	struct memo *memo = epoch ? lock_memo(sample->record.tid, sample->pc) : 0;
	u64 *registers = sample->registers, hash = 0;

	if (!epoch || !memo)
		return 0;
	if (memo->tid == sample->record.tid && memo->epoch == *(volatile u32 *)epoch && memo->pc == sample->pc &&
	    memo->registers[0] == registers[FP] && memo->registers[1] == registers[SP] && memo->registers[2] == registers[LINK] &&
	    has_same_words(memo, sample))
		hash = memo->hash;
	release_memo(memo);
	return hash;
}

/* Remembers a walk that reached the outermost frame. The last four arguments are the registers at its begin. */
INLINE void remember_stack(struct sample *sample, u64 pc, u64 fp, u64 sp, u64 link)
{
	struct memo *memo = sample->noted <= REMEMBERED ? lock_memo(sample->record.tid, pc) : 0;

	if (!memo)
		return;
	memo->tid = sample->record.tid;
	memo->epoch = sample->epoch;
	memo->number = sample->noted;
	memo->pc = pc;
	memo->hash = sample->hash;
	memo->registers[0] = fp;
	memo->registers[1] = sp;
	memo->registers[2] = link;
	for (u32 at = 0; at < REMEMBERED; at++) {
		if (at >= sample->noted)
			break;
		memo->words[at] = sample->notes[at];
	}
	release_memo(memo);
}

/* Sets a hash that no other stack has, for a stack that user space has to walk before its real hash is known. */
INLINE void set_unique_hash(struct sample *sample, u32 tid, u32 reason)
{
	sample->hash = (((sample->record.time << 16) ^ tid) * OFF_CPU_HASH_FACTOR) ^ reason * OFF_CPU_HASH_FACTOR;
	sample->record.hash = sample->hash;
}

/* Walks the stack of the task that leaves the CPU. Returns the hash with which its time is counted; 0 if the stack is lost. */
INLINE u64 walk_leaving_task(struct switch_context *context, struct sample *sample, u32 state, u32 tgid, u32 tid, u32 *reason)
{
	struct task_struct *task = current_task();
	struct count_key key = { .tgid = tgid, .tid = settings.threads ? tid : 0 };
	u64 pc, fp, sp, link;
	int found;
	u32 end;

	begin_sample(sample, tgid, tid);
	sample->record.frames = 1; /* the reason */
	if (settings.kernel_frames)
		push_kernel_frames(context, sample);
	found = read_user_registers(sample, task);
	if (found == OTHER_REGISTERS) {
		add_statistic(STAT_OTHER_ABI, 1);
		return 0;
	}
	*reason = state == 0 ? OFF_PREEMPTED : find_off_cpu_reason(sample, found == HAS_REGISTERS, state);
	if (found == HAS_REGISTERS && !settings.kernel_frames) {
		u64 hash = find_remembered_hash(sample);

		key.hash = hash ^ *reason * OFF_CPU_HASH_FACTOR;
		if (hash && has_count(&key)) {
			add_statistic(STAT_REMEMBERED, 1);
			return key.hash;
		}
	}
	sample->words[0] = ((u64)OFF_CPU_FILE << FILE_SHIFT) | *reason;
	pc = sample->pc, fp = sample->registers[FP], sp = sample->registers[SP], link = sample->registers[LINK];
	end = finish_walk(sample, found == HAS_REGISTERS);
	if (is_unfinished(end)) {
		set_unique_hash(sample, tid, *reason);
		return send_unfinished(sample, 0) ? sample->hash : 0;
	}
	if (!settings.kernel_frames && (end == END_OUTERMOST || end == END_NO_RETURN))
		remember_stack(sample, pc, fp, sp, link);
	sample->record.hash = sample->hash ^= *reason * OFF_CPU_HASH_FACTOR;
	sample->record.tid = key.tid;
	key.hash = sample->hash;
	return find_or_add_count(&key, sample) ? sample->hash : 0;
}

INLINE void count_block(struct block *block, u32 tid, u64 hash, u64 since, u64 until)
{
	struct count_key key = { .hash = hash, .tgid = block->tgid, .tid = settings.threads ? tid : 0 };
	struct count *count = find_or_add_count(&key, 0);

	if (count)
		add_to_count(count, until - since);
}

/* Counts the time of a thread that was off the CPU until `now`. */
INLINE void end_block(struct block *block, u32 tid, u64 now)
{
	u64 since = block->since, hash = block->hash, woken;

	woken = block->woken > since && block->woken < now ? block->woken : now;
	block->since = 0;
	if (now <= since)
		return;
	count_block(block, tid, hash, since, woken);
	if (woken < now)
		count_block(block, tid, hash ^ block->reason * OFF_CPU_HASH_FACTOR ^ OFF_WAITING * OFF_CPU_HASH_FACTOR, woken, now);
}

/* Walks the stack of the current task, which leaves the CPU, and notes the time. */
INLINE void begin_block(struct switch_context *context, u64 now)
{
	struct task_struct *task = current_task();
	u64 id = current_pid_tgid();
	u32 tgid = id >> 32, tid = id, state = settings.switch_has_state ? (u32)context->state : task->__state;
	struct block block = { .since = now, .ran = task->se.sum_exec_runtime }, *previous;
	struct sample *sample;

	if (tgid == 0 || (task->flags & PF_EXITING) || (!settings.kernel_frames && (task->flags & PF_KTHREAD)) || !is_wanted(tgid))
		return;
	if (context->preempted & 0xff)
		state = 0;
	/* Some switches are not reported (by Linux 6.18 under load), not even to the kernel's own tracer, so that a task leaves twice. The
	   scheduler's counter tells how long it ran in between; the rest of that time it was off the CPU. */
	previous = map_lookup(&blocks, &tid);
	if (previous && previous->since)
		end_block(previous, tid, now - (block.ran - previous->ran));
	add_statistic(STAT_SAMPLES, 1);
	sample = free_sample();
	if (!sample)
		return;
	block.tgid = tgid;
	block.hash = walk_leaving_task(context, sample, state, tgid, tid, &block.reason);
	*(volatile u64 *)&sample->busy = 0;
	if (!block.hash)
		return;
	if (previous)
		*previous = block;
	else if (map_update(&blocks, &tid, &block, UPDATE_ANY))
		add_statistic(STAT_BLOCKS_FULL, 1);
}

SECTION("raw_tp/sched_switch") int on_switch(struct switch_context *context)
{
	struct task_struct *after = context->after;
	struct block *block = 0;
	u64 now = nanoseconds();
	s32 tid;

	if (READ_KERNEL(tid, after, pid) == 0 && tid != 0)
		block = map_lookup(&blocks, &tid);
	if (block && block->since)
		end_block(block, tid, now);
	begin_block(context, now);
	return 0;
}

/* Runs for each task when profiling begins, and sends those that are already asleep. */
SECTION("iter/task") int on_begin(struct iterator_context *context)
{
	struct task_struct *task = context->task;
	struct block block = {};
	struct sample *sample;
	u32 tgid, tid, state;

	if (!task || (task->flags & (PF_EXITING | PF_KTHREAD)))
		return 0;
	tgid = task->tgid, tid = task->pid, state = task->__state;
	if (state == 0 || (!settings.every_process && !map_lookup(&wanted, &tgid)) || map_lookup(&blocks, &tid))
		return 0;
	sample = free_sample();
	if (!sample)
		return 0;
	begin_sample(sample, tgid, tid);
	sample->record.frames = 1;
	sample->record.end = END_NO_PROCESS;
	if (READ_KERNEL(sample->record.comm, task, comm) == 0 && read_user_registers(sample, task) == HAS_REGISTERS) {
		block.reason = find_off_cpu_reason(sample, 1, state);
		sample->words[0] = ((u64)OFF_CPU_FILE << FILE_SHIFT) | block.reason;
		set_unique_hash(sample, tid, block.reason);
		block.since = sample->record.time;
		block.hash = sample->hash;
		block.ran = task->se.sum_exec_runtime;
		block.tgid = tgid;
		if (send_unfinished(sample, 1))
			map_update(&blocks, &tid, &block, UPDATE_NEW);
	}
	*(volatile u64 *)&sample->busy = 0;
	return 0;
}

SECTION("raw_tp/sched_waking") int on_waking(struct tracepoint_context *context)
{
	struct task_struct *task = (void *)context->arguments[0];
	struct block *block;
	u32 tid;

	if (READ_KERNEL(tid, task, pid))
		return 0;
	block = map_lookup(&blocks, &tid);
	if (block && block->since && block->reason != OFF_PREEMPTED)
		block->woken = nanoseconds();
	return 0;
}

/* --- What processes do ----------------------------------------------------------------------------------------------------------- */

/* Ends the current epoch, so that the published spans, and those that user space is reading now, no longer count. */
INLINE void end_epoch(u32 tgid)
{
	u32 *epoch = map_lookup(&epochs, &tgid);

	if (epoch)
		*(volatile u32 *)epoch = new_epoch();
}

SECTION("raw_tp/sched_process_exec") int on_exec(struct tracepoint_context *context)
{
	u32 tgid = current_pid_tgid() >> 32;
	u8 *target = map_lookup(&wanted, &tgid);

	end_epoch(tgid);
	if (target)
		*target = WANTED;
	return 0;
}

/* Runs at the exit of each thread; the last one ends the process. */
SECTION("raw_tp/sched_process_exit") int on_exit(struct tracepoint_context *context)
{
	struct task_struct *task = current_task();
	u64 id = current_pid_tgid();
	u32 tgid = id >> 32, tid = id;

	map_delete(&blocks, &tid);
	if (task->signal->live.counter > 0)
		return 0;
	map_delete(&epochs, &tgid);
	map_delete(&processes, &tgid);
	map_delete(&wanted, &tgid);
	return 0;
}

/* The child begins with its parent's memory, so that its spans are known before it runs. */
SECTION("raw_tp/sched_process_fork") int on_fork(struct tracepoint_context *context)
{
	struct task_struct *parent = (void *)context->arguments[0], *child = (void *)context->arguments[1];
	struct process *process, copy;
	u32 from, to, *epoch, fresh;
	u8 yes = 1;

	if (READ_KERNEL(from, parent, tgid) || READ_KERNEL(to, child, tgid) || from == to)
		return 0;
	map_delete(&processes, &to); /* left by an earlier process with this pid, whose exit was not seen */
	map_delete(&epochs, &to);
	if (!settings.every_process) {
		if (!map_lookup(&wanted, &from)) {
			map_delete(&wanted, &to);
			return 0;
		}
		map_update(&wanted, &to, &yes, UPDATE_ANY);
	}
	process = map_lookup(&processes, &from);
	epoch = map_lookup(&epochs, &from);
	if (!process || !epoch)
		return 0;
	copy = *process;
	if (copy.epoch != *(volatile u32 *)epoch)
		return 0;
	fresh = new_epoch(); /* its own, so that spans that user space reads for the parent do not count for the child */
	copy.epoch = fresh;
	if (map_update(&epochs, &to, &fresh, UPDATE_ANY) == 0)
		map_update(&processes, &to, &copy, UPDATE_ANY);
	return 0;
}

/* New memory where a published span was shows that the span was unmapped. While user space reads the spans, any new memory may be such. */
SECTION("raw_tp/vm_unmapped_area") int on_unmapped_area(struct tracepoint_context *context)
{
	struct vm_unmapped_area_info *info = (void *)context->arguments[1];
	u64 start = context->arguments[0], length;
	u32 tgid = current_pid_tgid() >> 32, number;
	u32 *epoch = map_lookup(&epochs, &tgid);
	struct process *process = map_lookup(&processes, &tgid);
	struct span *span;

	if (!epoch || READ_KERNEL(length, info, length) || start >= -4095ull || length == 0)
		return 0;
	if (process && process->epoch == *(volatile u32 *)epoch) {
		number = last_span(process->first, process->count, start + length - 1);
		if (number >= process->first + process->count)
			return 0;
		span = map_lookup(&spans, &number);
		if (!span || span->end <= start)
			return 0;
	}
	struct area area = { .type = RECORD_AREA, .tgid = tgid, .time = nanoseconds(), .start = start, .end = start + length };

	ring_output(&ring, &area, sizeof(area), 0);
	*(volatile u32 *)epoch = new_epoch();
	return 0;
}
