/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* What the kernel program and user space share: numbers, and the layout of maps and records. The Python modules have the same numbers:
   packed_frames.py, kernel_records.py, ends.py and step.py in sframegen/stack/walking; a test compares them. All
   structures have no padding. */
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

/* Why a thread is off the CPU: the address of a frame in OFF_CPU_FILE, which is the innermost one of its stack */
enum { OFF_SLEEPING = 1, OFF_LOCK = 2, OFF_IO = 3, OFF_PREEMPTED = 4, OFF_WAITING = 5 };
#define OFF_CPU_HASH_FACTOR 0x9e3779b97f4a7c15ull /* the hash of such a stack is that of its other frames ^ reason * OFF_CPU_HASH_FACTOR */

/* Why a walk ended */
enum {
	END_OUTERMOST = 0,
	END_NO_RETURN = 1,
	END_NO_PROCESS = 2,
	END_NO_MAPPING = 3,
	END_NO_TABLE = 4,
	END_NO_RULE = 5,
	END_GUESS_FAILED = 6,
	END_UNREADABLE = 7,
	END_NOT_ASCENDING = 8,
	END_UNKNOWN_REGISTER = 9,
	END_TOO_DEEP = 10,
	END_DAMAGED_TABLE = 11,
	END_KERNEL_THREAD = 12,
	END_STACK_GONE = 14, /* 13 is for copies of stacks */
	END_OTHER_STACK = 15,
	ENDS = 16
};

/* Counters of each CPU: those of the ends come first */
enum {
	STAT_SAMPLES = 16,     /* of wanted processes */
	STAT_KERNEL_MODE = 17, /* of those: the event came in the kernel */
	STAT_RING_FULL = 18,  /* lost: no room in the ring buffer */
	STAT_COUNTS_FULL = 19, /* lost: no room in the map of counts, or it was locked */
	STAT_BUSY = 20,       /* lost: another sample was being taken on this CPU */
	STAT_OTHER_ABI = 21,  /* lost: a 32-bit program */
	STAT_PROCESSES_FULL = 22, /* more processes than are followed; their samples are not lost, but are copied each time */
	STAT_BLOCKS_FULL = 23, /* lost: more threads off the CPU than there is room for */
	STAT_REMEMBERED = 24,  /* walks that were not needed: the stack was the one of the time before */
	STATS = 25
};

/* Whose samples are taken: from now on, or from the exec of another program on */
enum { WANTED = 1, WANTED_AFTER_EXEC = 2 };

enum { FILE_PENDING = 0, FILE_WITHOUT = 1, FILE_READY = 2 };

/* `state`: each table that is ready has another number, from FILE_READY on.
   `unproven`: code without a rule may still get one, and is for user space until then. */
struct file {
	struct table_places places;
	u32 state, unproven;
};

struct span {
	u64 start, end, bias;
	u32 file, padding;
};

/* The extent of `spans` that is a process's. It counts only while `epoch` is that of the process in `epochs`. */
struct process {
	u32 first, count, epoch;
};

struct count_key {
	u64 hash;
	u32 tgid, tid;
};

/* How often a stack was seen, and how many nanoseconds that stands for. A count of 0 only says that the stack was sent. */
struct count {
	u64 samples, nanoseconds;
};

/* A thread off the CPU since a time; if that is 0, it runs. `woken`: when it could have run again, if that is later. `hash`: of its stack,
   with the reason. `ran`: its CPU time. */
struct block {
	u64 since, woken, hash, ran;
	u32 tgid, reason;
};

/* What a walk has read, from the stack. A thread that leaves its CPU with the same registers and mappings, while all these words are the
   same, has the same stack: most threads wait where they waited before. `registers`: FP, SP, and the link register. */
enum { REMEMBERED = 60 };

struct read_word {
	u64 address, value;
};

struct memo {
	u64 busy;
	u32 tid, epoch, number, padding;
	u64 pc, hash, registers[3];
	struct read_word words[REMEMBERED + 4]; /* a power of two, for the verifier */
};

enum { RECORD_STACK = 1, RECORD_UNFINISHED = 2, RECORD_AREA = 3 };
enum { STOPPED_EXACT = 1, STOPPED_GUESSED = 2, STOPPED_ASLEEP = 4 };
enum { STACK_BYTES = 65536, STACK_PAGES = 64, MAX_GAP = 16, REGISTERS = 32, COMM_BYTES = 16, MAX_FRAMES = MAX_DEPTH + KERNEL_DEPTH + 1, MAX_SIGNALS = 64, GUESS_REACH = 65536 };

/* New memory at [start, end): what user space knows there from before was unmapped. It is sent before the epoch changes. */
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

/* Where a walk stopped: in the frame whose registers these are, which is not among the frames. `registers` by DWARF number, `known` has
   a bit for each. `file`: whose table is missing there. A stack_record follows with its frames, then
   `size` bytes of the stack from `start`, which is at SP or, with its red zone, below it: of those pages for which `pages` has a bit, the
   first is that of `start`. The others cannot be read. With STOPPED_ASLEEP there are none: user space reads them while the thread waits. */
struct stopped {
	u32 type, flags;
	u64 pc, known, start, pages;
	u32 size, file;
	u64 registers[REGISTERS];
};

/* What user space chooses before the program is loaded, so that the verifier drops the code that is not needed.
   `sample_time`: nanoseconds that a sample stands for.
   `memos`: the elements of that map, a power of two. */
struct settings {
	u64 ra_mask, sample_time;
	u32 cpus, memos;
	u8 every_process, kernel_frames, threads, one_comm, switch_has_state, padding[3];
	char comm[COMM_BYTES];
};

/* In .bss, mapped by user space. `active`: which map of counts is written. */
struct shared {
	u32 active, last_epoch;
};

#endif
