// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Finds the rules of code that the process itself makes at run time, in the tables that it writes (docs/registration.md). Each
   region of code is in a list, and has a list of tables, whose entries are sorted by offset in the region. A region's serial is odd while
   it is registered, and changes when it is reused. */
#ifndef SFRAMEGEN_JIT_TABLES_H
#define SFRAMEGEN_JIT_TABLES_H

#include "sections.h"

#define SFRAMEGEN_JIT_READER
#include "../integration/include/sframegen_jit.h"

enum { MAX_REGIONS = 4096, MAX_TABLES = 1 << 16 };

static void read_jit_entry(const struct sframegen_jit_fre *entry, struct rule *rule)
{
	uint8_t info = __atomic_load_n(&entry->info, __ATOMIC_ACQUIRE);

	if (info & (SFRAMEGEN_JIT_REMOVED | 0x40))
		return;
	rule->kind = info & SFRAMEGEN_JIT_OUTERMOST ? RULE_OUTERMOST : info & SFRAMEGEN_JIT_SIGNAL ? RULE_SIGNAL : RULE;
	rule->cfa = (struct value){ .base = info & SFRAMEGEN_JIT_CFA_SP ? SP : FP, .offset = entry->cfa_off };
	rule->ra = rule->fp = (struct value){ .base = IN_REGISTER };
	if (info & SFRAMEGEN_JIT_RA_SAVED)
		rule->ra = (struct value){ .base = BASE_CFA, .offset = entry->ra_off, .deref = true };
	if (info & SFRAMEGEN_JIT_FP_SAVED)
		rule->fp = (struct value){ .base = BASE_CFA, .offset = entry->fp_off, .deref = true };
}

static void search_jit_tables(const struct sframegen_jit_region *region, uint64_t offset, struct rule *rule)
{
	const struct sframegen_jit_table *table = (const void *)(uintptr_t)region->unwind_head;

	for (int tables = 0; table && tables < MAX_TABLES; tables++) {
		const struct sframegen_jit_table *next = (const void *)(uintptr_t)__atomic_load_n(&table->next, __ATOMIC_ACQUIRE);
		const struct sframegen_jit_fre *entries = (const void *)(table + 1);
		size_t low = 0, high = __atomic_load_n(&table->used_len, __ATOMIC_ACQUIRE) / sizeof *entries;

		if (table->fre_stride != sizeof *entries)
			return;
		while (low < high) { /* find the first entry after the offset */
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

/* The process does not free the tables while their code has a frame on this stack. */
static void find_jit_rule(uintptr_t pc, struct rule *rule)
{
	const struct sframegen_jit_region *region = NULL;

	if (&__sframegen_jit_tables)
		region = (const void *)(uintptr_t)__atomic_load_n(&__sframegen_jit_tables.first, __ATOMIC_ACQUIRE);
	for (int regions = 0; region && regions < MAX_REGIONS; regions++) {
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

#endif
