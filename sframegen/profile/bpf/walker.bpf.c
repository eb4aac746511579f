// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Walks the user stacks of running tasks, in the kernel, with decoded tables of SFrame sections: one run for each event.

   A walk that ends is counted; a stack that was not counted before goes through the ring buffer once. A walk that meets unknown code sends
   its registers and a copy of the stack, and user space walks that. Nothing in the target's memory is trusted: every read may fail, each
   caller's frame lies above the one before, and the number of frames has a limit. */
#include "kernel_types.h"
#include "machine.h"

char terms[] SECTION("license") = "GPL"; /* of the two, the one under which the kernel runs it */

const volatile struct settings settings = {};
struct shared shared;

/* Numbers of entries are the least ones: user space sets most of them before it loads the program. */
MAP(processes, MAP_HASH, 1, u32, struct process);
MAP(epochs, MAP_HASH, 1, u32, u32);
MAP(wanted, MAP_HASH, 1, u32, u8);
MAP(counts, MAP_HASH, 1, struct count_key, u64);
MAP(more_counts, MAP_HASH, 1, struct count_key, u64);
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

/* The state of one walk, and its records. `low`: what the caller's SP has to be above. */
struct sample {
	u64 busy, pc, known, low, hash, serial;
	u64 registers[REGISTERS];
	u64 saved[SAVED_WORDS + 1];
	u32 first, count, last, exact, guessed, signals, second, callers, copied, missing;
	u64 kernel[KERNEL_DEPTH + 1];
	struct stopped stopped;
	struct stack_record record;
	u64 words[MAX_FRAMES + STACK_BYTES / 8 + 4096 / 8]; /* the verifier takes each page as a whole */
};

/* An element for each CPU. An ordinary array, because elements of those for each CPU are smaller. */
MAP(samples, MAP_ARRAY, 1, u32, struct sample);

INLINE void add(u32 statistic, u64 number)
{
	u64 *value = map_lookup(&statistics, &statistic);

	if (value)
		*value += number;
}

INLINE u32 new_epoch(void) { return __sync_fetch_and_add(&shared.last_epoch, 1) + 1; }

/* --- Look-ups -------------------------------------------------------------------------------------------------------------------- */

/* Returns the number of the last span that begins at the address or before it; at least `first` + `count` if there is none. */
GLOBAL u32 last_span(u32 first, u32 count, u64 address)
{
	u32 low = first, high = first + count;

	for (u32 step = 0; step < 24 && low < high; step++) {
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

/* Most frames are in the span of the frame before. */
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

/* Copies an element of a table; returns 0 if there is no such element. */
INLINE int element(void *table, u32 at, u64 *to)
{
	u64 *value = map_lookup(table, &at);

	if (value)
		*to = *value;
	return value != 0;
}

INLINE u32 half(u64 value, u32 number) { return number & 1 ? value >> 32 : value; }

enum { FOUND = -1, RULE_NONE = -2, RULE_UNPROVEN = -3 }; /* else an END_ */

/* Finds the rule of the code at a link-time address in a table. Returns FOUND, RULE_NONE or END_DAMAGED_TABLE. */
INLINE int search(struct file *file, void *table, u64 address, struct rule *rule)
{
	u64 value, offset = address - file->base;
	u32 page, low, high;

	if (offset >> PAGE_BITS >= file->pages)
		return RULE_NONE;
	page = offset >> PAGE_BITS;
	if (!element(table, file->index_at + page / 2, &value))
		return END_DAMAGED_TABLE;
	low = half(value, page);
	if ((page & 1) && !element(table, file->index_at + page / 2 + 1, &value))
		return END_DAMAGED_TABLE;
	high = half(value, page + 1);
	for (u32 step = 0; step < 9 && low < high; step++) {
		u32 middle = low + (high - low) / 2;

		if (!element(table, file->rows_at + middle / 2, &value))
			return END_DAMAGED_TABLE;
		if ((half(value, middle) & 0xff) <= (offset & 0xff))
			low = middle + 1;
		else
			high = middle;
	}
	if (low < high)
		return END_DAMAGED_TABLE;
	if (low == 0)
		return RULE_NONE;
	low--; /* perhaps a row of an earlier page: it holds until the next one */
	if (!element(table, file->rows_at + low / 2, &value))
		return END_DAMAGED_TABLE;
	low = half(value, low) >> ROW_RULE_SHIFT;
	if (low == 0)
		return RULE_NONE;
	low = file->rules_at + low * RULE_ELEMENTS;
	if (!element(table, low, (u64 *)rule) || !element(table, low + 1, (u64 *)rule + 1))
		return END_DAMAGED_TABLE;
	return FOUND;
}

/* Finds the rule of the code at a link-time address. Returns FOUND, RULE_NONE, RULE_UNPROVEN if it may still come, or why there is no
   answer. `serial`: as in struct stopped. */
GLOBAL int find_rule(u32 number, u32 second, u64 address, struct rule *rule, u64 *serial)
{
	struct file *file = map_lookup(&files, &number);
	void *table = map_lookup(&tables, &number);
	u64 check;
	u32 state;
	int found;

	if (!rule || !serial || !file)
		return END_DAMAGED_TABLE;
	state = *(volatile u32 *)&file->state;
	check = file->check;
	*serial = 0;
	if (check && (read_user(serial, sizeof(*serial), (void *)check) || *serial != file->serial))
		return END_NO_TABLE;
	if (state == FILE_WITHOUT)
		return file->unproven ? RULE_UNPROVEN : RULE_NONE;
	if (state < FILE_READY || !table)
		return END_NO_TABLE;
	if (file->used != second)
		file->used = second;
	found = search(file, table, address, rule);
	if (*(volatile u32 *)&file->state != state) /* it was exchanged meanwhile */
		return END_NO_TABLE;
	if (found == RULE_NONE && file->unproven)
		return RULE_UNPROVEN;
	return check && found == RULE_NONE ? END_NO_TABLE : found;
}

/* Is this number that of code without a file? */
INLINE int is_made(u32 number)
{
	struct file *file = map_lookup(&files, &number);

	return number == NO_FILE || (file && file->check);
}

/* --- One frame ------------------------------------------------------------------------------------------------------------------- */

INLINE int word(u64 address, u64 *to) { return read_user(to, sizeof(*to), (void *)address) == 0; }

INLINE int known(struct sample *sample, u32 number) { return number < REGISTERS && (sample->known & BIT(number)); }

INLINE void push(struct sample *sample, u64 frame)
{
	u32 at = sample->record.frames;

	if (at < MAX_FRAMES) {
		sample->words[at] = frame;
		sample->record.frames = at + 1;
		sample->hash = (sample->hash ^ frame) * 0x9e3779b97f4a7c15ull;
		sample->hash ^= sample->hash >> 32;
	}
}

/* All registers are those that the kernel saved for the handler; if there are none with that PC, only SP and FP are known. */
INLINE void take_interrupted(struct sample *sample, u64 sp, u64 pc)
{
	u64 *saved = sample->saved;

	_Static_assert(CONTEXT_WORDS <= SAVED_WORDS + 1, "there is room for the saved context");
	if (read_user(saved, CONTEXT_WORDS * 8, (void *)(sp + CONTEXT)) || saved[CONTEXT_PC] != pc)
		return;
	take_context(sample->registers, saved);
	sample->known = (1ull << GENERAL) - 1;
}

/* Is the frame record that ends at `cfa` on the stack that goes on at `low`? Between two stacks lies much other memory, or a page that
   cannot be read. */
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

/* Records the frame and goes to its caller. Returns why the walk ends, or FOUND. The walk stops before the frame is recorded if user
   space may know more. */
GLOBAL int step(struct sample *sample)
{
	struct rule rule = {};
	struct span *span;
	u64 code, pc, cfa, ra, fp, sp, packed, fp_known;
	u32 flags, starts, guess = 0, guess_failed = END_GUESS_FAILED;
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
		found = find_rule(span->file, sample->second, code - span->bias, &rule, &sample->serial);
		packed = ((u64)(span->file & KERNEL_FILE) << FILE_SHIFT) | ((code - span->bias) & ADDRESS_MASK);
	}
	starts = sample->exact && known(sample, 0) && sample->registers[0] == 0 && starts_thread(pc);
	if (found == RULE_UNPROVEN && starts)
		found = RULE_NONE;
	if (found == RULE_UNPROVEN)
		found = known(sample, SP) && returns_from_signal(pc) ? RULE_NONE : END_NO_TABLE;
	if (found == END_NO_TABLE)
		return END_NO_TABLE;
	/* Where the kernel or a library has put the return address, no call ends there. */
	if (!sample->exact && span->file != NO_FILE && (found == RULE_NONE || (found == FOUND && (rule.flags & (RULE_OUTERMOST | RULE_SIGNAL)))) &&
	    !ends_call(pc))
		packed++;
	push(sample, packed | (sample->guessed ? GUESSED : 0));
	if (starts)
		return END_OUTERMOST;
	if (found >= 0)
		return found;
	fp_known = known(sample, FP);
	if (found == FOUND && (rule.flags & RULE_OUTERMOST))
		return END_OUTERMOST;
	if (found == RULE_NONE) {
		if (known(sample, SP) && returns_from_signal(pc)) {
			rule.cfa_register = SP, rule.cfa_offset = CONTEXT;
			rule.ra_offset = CONTEXT_PC * 8, rule.flags = RULE_RA_DEREF | RULE_SIGNAL;
		} else if (span->file == NO_FILE && known(sample, SP) && drops_a_word_and_returns(pc)) {
			rule.cfa_register = SP, rule.cfa_offset = 16, rule.ra_offset = -8, rule.flags = RULE_RA_DEREF;
		} else {
			if (!fp_known)
				return END_NO_RULE;
			guess = 1;
		}
	} else if (!known(sample, rule.cfa_register) || ((rule.flags & RULE_RA_REGISTER) && !known(sample, rule.ra_register))) {
		if (!fp_known)
			return END_UNKNOWN_REGISTER;
		guess = 1;
		guess_failed = END_UNKNOWN_REGISTER;
	}
	if (guess) {
		rule.cfa_register = FP, rule.cfa_offset = 16, rule.ra_offset = -8, rule.fp_offset = -16;
		rule.flags = RULE_RA_DEREF | RULE_FP | RULE_FP_DEREF;
	}
	flags = rule.flags;
	cfa = sample->registers[rule.cfa_register & (REGISTERS - 1)] + rule.cfa_offset;
	if (guess && !on_same_stack(sample->low, cfa))
		return guess_failed;
	if ((flags & RULE_CFA_DEREF) && !word(cfa, &cfa))
		return END_UNREADABLE;
	ra = cfa + rule.ra_offset;
	if (flags & RULE_RA_REGISTER)
		ra = sample->registers[rule.ra_register & (REGISTERS - 1)] + rule.ra_offset;
	if ((flags & RULE_RA_DEREF) && !word(ra, &ra))
		return guess ? guess_failed : END_UNREADABLE;
	ra &= settings.ra_mask;
	fp = sample->registers[FP];
	if (flags & RULE_FP) {
		fp = cfa + rule.fp_offset;
		fp_known = 1;
		if (flags & RULE_FP_REGISTER) {
			fp_known = known(sample, rule.fp_register);
			fp = sample->registers[rule.fp_register & (REGISTERS - 1)] + rule.fp_offset;
		}
		if (fp_known && (flags & RULE_FP_DEREF) && !word(fp, &fp))
			fp_known = 0; /* lost, which few frames notice */
	}

	sp = sample->registers[SP];
	if (flags & RULE_SIGNAL) { /* the interrupted code may be on another stack */
		u64 sp_known = known(sample, SP);

		if (++sample->signals > MAX_SIGNALS)
			return END_TOO_DEEP;
		sample->known = BIT(SP) | (fp_known ? BIT(FP) : 0);
		sample->registers[SP] = cfa;
		sample->registers[FP] = fp;
		if (sp_known)
			take_interrupted(sample, sp, ra);
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
		return guess && guess_failed != END_GUESS_FAILED ? guess_failed : END_NO_RETURN;
	if (guess) {
		span = span_at(sample, ra - 1);
		if ((cfa & 7) || !span || (!is_made(span->file) && !ends_call(ra)))
			return guess_failed;
		sample->callers++;
	}
	sample->guessed = guess;
	sample->exact = (flags & RULE_SIGNAL) != 0;
	sample->pc = ra;
	return FOUND;
}

/* --- Records --------------------------------------------------------------------------------------------------------------------- */

/* Copies the stack from SP to after the frames, page by page, until one cannot be read. */
GLOBAL int copy_stack(struct sample *sample)
{
	u32 at, copied = 0;
	u64 from;

	if (!sample)
		return 0;
	from = sample->stopped.start;
	at = sample->record.frames;
	if (at > MAX_FRAMES)
		return 0;
	for (u32 page = 0; page < STACK_BYTES / 4096; page++) {
		u32 size = 4096 - ((from + copied) & 4095);

		if (read_user((u8 *)&sample->words[at] + copied, size, (void *)(from + copied)))
			break;
		copied += size;
	}
	sample->copied = copied;
	return 0;
}

/* The rule of a function that has just restored a register still finds it in memory, below SP. The page of SP can be read. */
INLINE u64 copy_start(u64 sp)
{
	u64 page = sp & -4096ull, start = sp - RED_ZONE;

	return start < page ? page : start;
}

INLINE void send_unfinished(struct sample *sample)
{
	struct stopped *stopped = &sample->stopped;
	u32 size;

	stopped->type = RECORD_UNFINISHED;
	stopped->flags = (sample->exact ? STOPPED_EXACT : 0) | (sample->guessed ? STOPPED_GUESSED : 0);
	stopped->pc = sample->pc;
	stopped->known = sample->known;
	stopped->start = copy_start(known(sample, SP) ? sample->registers[SP] : sample->low);
	for (u32 number = 0; number < REGISTERS; number++)
		stopped->registers[number] = sample->registers[number];
	copy_stack(sample);
	size = sample->copied;
	stopped->size = size;
	stopped->file = sample->missing;
	stopped->serial = sample->serial;
	size += sample->record.frames * 8;
	if (size > sizeof(sample->words) || ring_output(&ring, stopped, sizeof(*stopped) + sizeof(sample->record) + size, 0))
		add(STAT_RING_FULL, 1);
}

INLINE int send_stack(struct sample *sample)
{
	u32 size = sample->record.frames * 8;

	if (size > MAX_FRAMES * 8)
		return 0;
	return ring_output(&ring, &sample->record, sizeof(sample->record) + size, 0) == 0;
}

INLINE void count_in(void *map, struct sample *sample, u32 tid)
{
	struct count_key key = { .hash = sample->hash, .tgid = sample->record.tgid, .tid = settings.threads ? tid : 0 };
	u64 *number = map_lookup(map, &key), one = 1;

	if (!number) {
		if (!send_stack(sample)) {
			add(STAT_RING_FULL, 1);
			return;
		}
		if (map_update(map, &key, &one, UPDATE_NEW)) {
			number = map_lookup(map, &key); /* another CPU was first */
			if (!number) {
				add(STAT_COUNTS_FULL, 1);
				return;
			}
		}
	}
	if (number)
		__sync_fetch_and_add(number, 1);
	if (settings.moments) {
		struct moment moment = { .type = RECORD_MOMENT, .cpu = sample->record.cpu, .time = sample->record.time,
			.hash = sample->hash, .tgid = key.tgid, .tid = tid };

		if (ring_output(&ring, &moment, sizeof(moment), 0))
			add(STAT_MOMENTS_LOST, 1);
	}
}

/* --- A sample -------------------------------------------------------------------------------------------------------------------- */

/* Returns 1 if the spans of the process are known. The first sample of a process makes it known to user space. */
INLINE int find_process(struct sample *sample, u32 tgid, u32 task_flags)
{
	struct process *process = map_lookup(&processes, &tgid);
	u32 *epoch = map_lookup(&epochs, &tgid);

	if (!epoch && !(task_flags & PF_EXITING)) {
		u32 fresh = new_epoch();

		if (map_update(&epochs, &tgid, &fresh, UPDATE_NEW))
			add(STAT_PROCESSES_FULL, 1);
	}
	if (!epoch || !process || process->epoch != *(volatile u32 *)epoch)
		return 0;
	sample->first = sample->last = process->first;
	sample->count = process->count;
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

INLINE void push_kernel_frames(struct perf_context *context, struct sample *sample)
{
	long size = get_stack(context, sample->kernel, KERNEL_DEPTH * 8, 0);

	for (u32 at = 0; at < KERNEL_DEPTH; at++) {
		if ((long)at * 8 >= size)
			break;
		push(sample, ((u64)KERNEL_FILE << FILE_SHIFT) | (sample->kernel[at] & ADDRESS_MASK));
	}
}

/* Stops the task at this sample, unless another one is held. */
INLINE int hold(void)
{
	if (__sync_val_compare_and_swap(&shared.held, 0, 1))
		return 0;
	if (signal_thread(STOP_SIGNAL) == 0)
		return 1;
	*(volatile u32 *)&shared.held = 0;
	return 0;
}

INLINE void remember_held(struct sample *sample)
{
	shared.held_pc = sample->pc;
	for (u32 number = 0; number < GENERAL; number++)
		shared.held_registers[number] = sample->registers[number];
}

INLINE void take(struct perf_context *context, struct sample *sample, u32 tgid, u32 tid)
{
	struct task_struct *task = current_task();
	u32 task_flags = task->flags, end;
	u64 mode = *(volatile u64 *)&context->registers[SAVED_MODE], unused;

	sample->record.type = RECORD_STACK;
	sample->record.time = nanoseconds();
	sample->record.tgid = tgid;
	sample->record.tid = tid;
	sample->record.frames = 0;
	sample->hash = 0;
	sample->second = sample->record.time >> 30;
	if (!in_user_mode(mode)) {
		add(STAT_KERNEL_MODE, 1);
		if (settings.kernel_frames)
			push_kernel_frames(context, sample);
	}
	sample->known = (1ull << GENERAL) - 1;
	sample->exact = 1;
	sample->guessed = sample->signals = sample->callers = sample->missing = 0;
	sample->serial = 0;
	end = END_KERNEL_THREAD;
	if (!(task_flags & PF_KTHREAD) && read_kernel(sample->saved, SAVED_WORDS * 8, (void *)user_registers(task)) == 0 &&
	    sample->saved[SAVED_PC] != 0) {
		if (is_32_bit(sample->saved[SAVED_MODE])) {
			add(STAT_OTHER_ABI, 1);
			return;
		}
		take_registers(sample->registers, sample->saved);
		sample->pc = sample->saved[SAVED_PC];
		sample->low = sample->registers[SP];
		if (settings.hold)
			remember_held(sample);
		end = find_process(sample, tgid, task_flags) ? walk(sample) : END_NO_PROCESS;
		if (end == END_UNREADABLE && !word(sample->registers[SP], &unused))
			end = END_STACK_GONE;
	}
	add(end < ENDS ? end : END_DAMAGED_TABLE, 1);
	add(STAT_FRAMES, sample->record.frames);
	add(STAT_GUESSED, sample->callers);
	sample->record.end = end;
	sample->hash ^= end;
	sample->record.hash = sample->hash;
	current_comm(sample->record.comm, COMM_BYTES);
	if (end == END_NO_PROCESS || end == END_NO_MAPPING || end == END_NO_TABLE) {
		send_unfinished(sample);
		return;
	}
	if (!settings.threads)
		sample->record.tid = 0;
	if (settings.hold) {
		if (!send_stack(sample))
			add(STAT_RING_FULL, 1);
	} else if (*(volatile u32 *)&shared.active)
		count_in(&more_counts, sample, tid);
	else
		count_in(&counts, sample, tid);
}

SECTION("perf_event") int on_event(struct perf_context *context)
{
	u64 id = current_pid_tgid();
	u32 tgid = id >> 32, cpu = this_cpu();
	struct sample *sample;
	u8 *asked;

	if (tgid == 0) {
		add(STAT_IDLE, 1);
		return 0;
	}
	if (!settings.every_process) {
		asked = map_lookup(&wanted, &tgid);
		if (!asked || *asked == WANTED_AFTER_EXEC) {
			add(STAT_FILTERED, 1);
			return 0;
		}
	}
	add(STAT_SAMPLES, 1);
	sample = map_lookup(&samples, &cpu);
	if (!sample || sample->busy) {
		add(STAT_BUSY, 1);
		return 0;
	}
	sample->busy = 1;
	sample->record.cpu = cpu;
	if (!settings.hold || hold())
		take(context, sample, tgid, id);
	*(volatile u64 *)&sample->busy = 0;
	return 0;
}

/* --- What processes do ----------------------------------------------------------------------------------------------------------- */

/* The spans that are known, or that user space determines now, hold no longer. */
INLINE void renew(u32 tgid)
{
	u32 *epoch = map_lookup(&epochs, &tgid);

	if (epoch)
		*(volatile u32 *)epoch = new_epoch();
}

SECTION("raw_tp/sched_process_exec") int on_exec(struct tracepoint_context *context)
{
	u32 tgid = current_pid_tgid() >> 32;
	u8 *asked = map_lookup(&wanted, &tgid);

	renew(tgid);
	if (asked)
		*asked = WANTED;
	return 0;
}

/* Each thread passes here; the last one takes the process with it. */
SECTION("raw_tp/sched_process_exit") int on_exit(struct tracepoint_context *context)
{
	struct task_struct *task = current_task();
	u32 tgid = current_pid_tgid() >> 32;

	if (task->signal->live.counter > 0)
		return 0;
	map_delete(&epochs, &tgid);
	map_delete(&processes, &tgid);
	map_delete(&wanted, &tgid);
	return 0;
}

/* The child has its parent's memory, so its spans are known before it runs; but each goes on with its own tables of code that it makes. */
SECTION("raw_tp/sched_process_fork") int on_fork(struct tracepoint_context *context)
{
	struct task_struct *parent = (void *)context->arguments[0], *child = (void *)context->arguments[1];
	struct process *process, copy;
	u32 from, to, *epoch, fresh;
	u8 yes = 1;

	if (READ_KERNEL(from, parent, tgid) || READ_KERNEL(to, child, tgid) || from == to)
		return 0;
	map_delete(&processes, &to); /* of an earlier process with this number, whose exit was not seen */
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
	if (!process || !epoch || process->makes_code)
		return 0;
	copy = *process;
	if (copy.epoch != *(volatile u32 *)epoch)
		return 0;
	fresh = new_epoch(); /* its own: what is determined for one process never counts for another one */
	copy.epoch = fresh;
	if (map_update(&epochs, &to, &fresh, UPDATE_ANY) == 0)
		map_update(&processes, &to, &copy, UPDATE_ANY);
	return 0;
}

/* New memory where a known span was: that one was unmapped since. While the spans are being determined, any new memory may be. */
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
