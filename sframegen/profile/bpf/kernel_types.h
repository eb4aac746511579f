/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The kernel's interface as far as the walker uses it: helpers by their numbers, map declarations as libbpf reads them, and members of
   kernel structures, whose offsets are found at load time through the kernel's BTF. */
#ifndef SFRAMEGEN_KERNEL_TYPES_H
#define SFRAMEGEN_KERNEL_TYPES_H

#include "walker.h"

#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define GLOBAL __attribute__((noinline)) /* the verifier checks such a function once, for any arguments */
#define RELOCATED __attribute__((preserve_access_index))

/* libbpf reads the declaration of a map from its type: numbers as the lengths of arrays, types as the targets of pointers. */
#define NUMBER(name, value) int (*name)[value]
#define TYPE(name, type) type *name
#define MAP(name, map_type, entries, key_type, value_type) \
	struct { \
		NUMBER(type, map_type); \
		NUMBER(max_entries, entries); \
		TYPE(key, key_type); \
		TYPE(value, value_type); \
	} name SECTION(".maps")

enum { MAP_HASH = 1, MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, MAP_ARRAY_OF_MAPS = 12, MAP_RINGBUF = 27 };
enum { MAP_MMAPABLE = 0x400, MAP_INNER = 0x1000 };
enum { UPDATE_ANY = 0, UPDATE_NEW = 1 };

struct task_struct;

static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3;
static u64 (*const nanoseconds)(void) = (void *)5;
static u32 (*const this_cpu)(void) = (void *)8;
static u64 (*const current_pid_tgid)(void) = (void *)14;
static long (*const current_comm)(void *buffer, u32 size) = (void *)16;
static long (*const get_stack)(void *context, void *buffer, u32 size, u64 flags) = (void *)67;
static long (*const read_user)(void *to, u32 size, const void *from) = (void *)112;
static long (*const read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*const ring_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;
static struct task_struct *(*const current_task)(void) = (void *)158;
static long (*const user_registers)(struct task_struct *task) = (void *)175;

enum { PF_EXITING = 0x4, PF_KTHREAD = 0x200000 };
enum { TASK_UNINTERRUPTIBLE = 2 };

typedef struct { int counter; } RELOCATED atomic_t;

struct signal_struct { atomic_t live; } RELOCATED;

struct sched_entity { u64 sum_exec_runtime; } RELOCATED;

struct task_struct {
	struct sched_entity se;
	u32 flags, __state;
	s32 pid, tgid;
	char comm[COMM_BYTES];
	struct signal_struct *signal;
} RELOCATED;

struct vm_unmapped_area_info { u64 length; } RELOCATED;

/* Reads a member of a kernel structure through a pointer that the verifier does not know. */
#define READ_KERNEL(to, pointer, member) read_kernel(&(to), sizeof(to), __builtin_preserve_access_index(&(pointer)->member))

struct tracepoint_context { u64 arguments[2]; };

struct iterator_context { void *state; struct task_struct *task; };

struct switch_context {
	u64 preempted;
	struct task_struct *before, *after;
	u64 state; /* since 5.18 */
};

#endif
