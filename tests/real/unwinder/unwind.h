/* Walks a stack by SFrame V3 alone, on x86-64. */
#ifndef UNWIND_H
#define UNWIND_H

#include <stdbool.h>
#include <stdint.h>

/* DWARF numbers of x86-64. */
enum { RBP = 6, RSP = 7, PC = 16, REGISTERS = 17 };

struct frame {
    uint64_t value[REGISTERS];
    uint32_t known; /* bit n: value[n] is the frame's */
    bool exact;     /* the next instruction to run is at PC; else a call ends there */
};

enum outcome { CALLER, OUTERMOST, LOST };

/* What kind of rule was followed. */
enum shape { DEFAULT_SP, DEFAULT_FP, FLEX_REGISTER, FLEX_FP_DEREF, FLEX_OTHER, MASK, SIGNAL, NO_RA, SHAPES };
extern const char *const shape_names[SHAPES];

#define NO_SECTION "no section" /* the reason why PC's object is not for us */

struct process {
    int memory; /* an open /proc/PID/mem: this process, or one forked from it */
};

/* The frame's caller, in place. LOST says why in `*reason`. */
enum outcome step(const struct process *process, struct frame *frame, enum shape *shape, const char **reason);

bool read_word(const struct process *process, uint64_t address, uint64_t *word);

/* Name and load address of the object that PC is in; NULL for none. */
const char *object_of(uint64_t pc, uint64_t *base);

#endif
