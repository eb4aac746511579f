#ifndef SCENARIOS_H
#define SCENARIOS_H

#include <stdbool.h>

#include "unwind.h"

extern bool silent; /* report() does nothing */

void report(void);
void print_walk(struct frame *frame);
void fault_at_once(int *null);
void fault_while_realigning(int *null);
void odd_rules(void);

/* Runs the scenario in a child, an instruction at a time, and prints what was found. */
int step_through(void (*scenario)(void));

#endif
