/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The numbers, and the layouts of maps and records, that the kernel program and user space share. A test compares them with the Python
   modules packed_frames.py and kernel_records.py, and with frames.py and step.py in sframegen/stack/walking. No structure has padding. */
#ifndef SFRAMEGEN_WALKER_H
#define SFRAMEGEN_WALKER_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;

/* Decoded tables are array maps. */
static int table_element(void *table, u32 at, void *to);
#include "table.h"

/* A packed frame: GUESSED << 63 | file << 48 | address */
enum { FILE_SHIFT = 48, NO_FILE = 0, OFF_CPU_FILE = 0x7ffe, KERNEL_FILE = 0x7fff, MAX_DEPTH = 1024, KERNEL_DEPTH = 127 };
#define GUESSED (1ull << 63)
#define ADDRESS_MASK ((1ull << FILE_SHIFT) - 1)

/* Why a thread is off the CPU: the address of the innermost frame of its stack, whose file is OFF_CPU_FILE */
enum { OFF_SLEEPING = 1, OFF_LOCK = 2, OFF_IO = 3, OFF_PREEMPTED = 4, OFF_WAITING = 5 };
#define OFF_CPU_HASH_FACTOR 0x9e3779b97f4a7c15ull /* the hash of such a stack is that of its other frames ^ reason * OFF_CPU_HASH_FACTOR */

/* Why a walk ended */
enum {
	END_OUTERMOST = 0, END_NO_RETURN = 1, END_NO_PROCESS = 2, END_NO_MAPPING = 3, END_NO_TABLE = 4, END_NO_RULE = 5, END_GUESS_FAILED = 6,
	END_UNREADABLE = 7, END_NOT_ASCENDING = 8, END_UNKNOWN_REGISTER = 9, END_TOO_DEEP = 10, END_DAMAGED_TABLE = 11, END_KERNEL_THREAD = 12,
	END_STACK_GONE = 14, /* 13 is for copies of stacks */
	END_OTHER_STACK = 15,
	ENDS = 16
};

/* The counters of each CPU, after those of the END_ numbers */
enum {
	STAT_SAMPLES = 16,     /* of wanted processes */
	STAT_KERNEL_MODE = 17, /* those of them whose event came while the kernel ran */
	STAT_RING_FULL = 18,  /* lost: no room in the ring buffer */
	STAT_COUNTS_FULL = 19, /* lost: no room in the map of counts, or it was locked */
	STAT_BUSY = 20,       /* lost: another sample was being taken on this CPU */
	STAT_OTHER_ABI = 21,  /* lost: a 32-bit program */
	STAT_PROCESSES_FULL = 22, /* too many processes; samples of the others are not lost, but their stacks are copied each time */
	STAT_BLOCKS_FULL = 23, /* lost: more threads off the CPU than there is room for */
	STAT_REMEMBERED = 24,  /* walks that were not needed, because the stack was the same as the time before */
	STATS = 25
};

/* Whether samples of a process are taken from now on, or from its next exec on */
enum { WANTED = 1, WANTED_AFTER_EXEC = 2 };

enum { FILE_PENDING = 0, FILE_WITHOUT = 1, FILE_READY = 2 };

/* `state`: each loaded table gets another number, from FILE_READY on. `unproven`: a proof may still add rules, so that user space has to
   walk stacks in code without a rule. */
struct file {
	struct table_places places;
	u32 state, unproven;
};

struct span {
	u64 start, end, bias;
	u32 file, padding;
};

/* The extent of `spans` with a process's mappings. It is valid only while `epoch` is the process's number in `epochs`. */
struct process { u32 first, count, epoch; };

struct count_key { u64 hash; u32 tgid, tid; };

/* How often a stack was sampled, and the nanoseconds that this stands for. A count of 0 tells that the stack was sent. */
struct count { u64 samples, nanoseconds; };

/* A thread that has been off the CPU since a time; 0 if it runs. `woken`: when it was woken, if that is later. `hash`: of its stack with
   the reason. `ran`: its CPU time when it left. */
struct block {
	u64 since, woken, hash, ran;
	u32 tgid, reason;
};

/* Remembers the words of the stack that a walk has read. A thread that leaves its CPU again with the same registers, mappings and words has
   the same stack, so that no walk is needed: most threads wait where they waited before. `registers`: FP, SP, and the link register. */
enum { REMEMBERED = 60 };

struct stack_word { u64 address, value; };

struct memo {
	u64 busy;
	u32 tid, epoch, number, padding;
	u64 pc, hash, registers[3];
	struct stack_word words[REMEMBERED + 4]; /* a power of two, for the verifier */
};

enum { RECORD_STACK = 1, RECORD_UNFINISHED = 2, RECORD_AREA = 3 };
enum { STOPPED_EXACT = 1, STOPPED_GUESSED = 2, STOPPED_ASLEEP = 4 };
enum { STACK_BYTES = 65536, STACK_PAGES = 64, MAX_GAP = 16, REGISTERS = 32, COMM_BYTES = 16 };
enum { MAX_FRAMES = MAX_DEPTH + KERNEL_DEPTH + 1, MAX_SIGNALS = 64, GUESS_REACH = 65536 };

/* New memory at [start, end), where any older mappings must have been unmapped. It is sent before the epoch changes. */
struct area {
	u32 type, tgid;
	u64 time, start, end;
};

/* `frames` words follow: packed frames, the innermost first. */
struct stack_record {
	u32 type, end;
	u64 time, hash;
	u32 tgid, tid, frames, padding;
	char comm[COMM_BYTES];
};

/* A walk that stopped. `registers`, by DWARF number: those of the frame where it stopped, which is not among the frames; `known` has a bit
   for each known one. `file`: the file at its PC, if its table is missing. A stack_record with the frames follows, and then `size` bytes of
   the stack from `start` on, which is SP or, for the red zone, below it. Only readable pages are there: `pages` has a bit for each, the
   lowest for the page of `start`. With STOPPED_ASLEEP there are none, because user space reads them while the thread sleeps. */
struct stopped {
	u32 type, flags;
	u64 pc, known, start, pages;
	u32 size, file;
	u64 registers[REGISTERS];
};

/* Constants that user space sets before it loads the program, so that the verifier drops code that is not needed.
   `sample_time`: nanoseconds that a sample stands for. `memos`: the number of elements of that map, a power of two. */
struct settings {
	u64 ra_mask, sample_time;
	u32 cpus, memos;
	u8 every_process, kernel_frames, threads, one_comm, switch_has_state, padding[3];
	char comm[COMM_BYTES];
};

/* In .bss, which user space maps. `active`: 0 if `counts` is written, 1 if `more_counts` is. */
struct shared { u32 active, last_epoch; };

#endif
