/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Finds the rule for an address in a decoded table, whose layout is in ../tables/decoded_table.py. Reads only inside the table, whatever
   its bytes are. The includer has to declare table_element(table, at, to), which copies 8 bytes, or returns 0 if there are none. */
#ifndef SFRAMEGEN_TABLE_H
#define SFRAMEGEN_TABLE_H

enum { TABLE_PAGE_BITS = 8, TABLE_ROW_RULE_SHIFT = 16, TABLE_RULE_ELEMENTS = 2, TABLE_SEARCH_STEPS = 9 };

/* `*_at`: where each part of the table begins, in elements of 8 bytes. */
struct table_places {
	u64 base; /* link-time address of the first page */
	u32 pages, index_at, rows_at, rules_at;
};

/* cfa = register cfa_register + cfa_offset, or with CFA_DEREF the word at that address, and without RA_REGISTER ra_register added to it
   ra  = cfa + ra_offset, or with RA_REGISTER register ra_register + ra_offset; with RA_DEREF the word at that address
   fp  = unchanged without FP; otherwise like ra, with the FP_ flags
   OUTERMOST: there is no caller. SIGNAL: the caller was interrupted by a signal, and the kernel has saved all its registers. */
enum { TABLE_CFA_DEREF = 1, TABLE_RA_REGISTER = 2, TABLE_RA_DEREF = 4 };
enum { TABLE_FP = 8, TABLE_FP_REGISTER = 0x10, TABLE_FP_DEREF = 0x20, TABLE_OUTERMOST = 0x40, TABLE_SIGNAL = 0x80 };

/* Registers have DWARF numbers. */
struct table_rule {
	int cfa_offset, ra_offset, fp_offset;
	unsigned char cfa_register, ra_register, fp_register, flags;
};

enum { TABLE_FOUND = 0, TABLE_NO_RULE = 1, TABLE_DAMAGED = 2 };

static inline __attribute__((always_inline)) u32 select_half(u64 element, u32 number)
{
	return (u32)(number & 1 ? element >> 32 : element);
}

/* Finds the rule of the code at a link-time address. Returns TABLE_FOUND, TABLE_NO_RULE, or TABLE_DAMAGED if the table's parts contradict
   each other. `rule` is set only after TABLE_FOUND. */
static inline __attribute__((always_inline)) int find_in_table(const struct table_places *places, void *table, u64 address,
					  struct table_rule *rule)
{
	u64 value, offset = address - places->base;
	u32 page, low, high;

	if (offset >> TABLE_PAGE_BITS >= places->pages)
		return TABLE_NO_RULE;
	page = offset >> TABLE_PAGE_BITS;
	if (!table_element(table, places->index_at + page / 2, &value))
		return TABLE_DAMAGED;
	low = select_half(value, page);
	if ((page & 1) && !table_element(table, places->index_at + page / 2 + 1, &value))
		return TABLE_DAMAGED;
	high = select_half(value, page + 1);
	for (u32 step = 0; step < TABLE_SEARCH_STEPS && low < high; step++) {
		u32 middle = low + (high - low) / 2;

		if (!table_element(table, places->rows_at + middle / 2, &value))
			return TABLE_DAMAGED;
		if ((select_half(value, middle) & 0xff) <= (offset & 0xff))
			low = middle + 1;
		else
			high = middle;
	}
	if (low < high)
		return TABLE_DAMAGED;
	if (low == 0)
		return TABLE_NO_RULE;
	low--; /* perhaps a row of an earlier page, which holds until the next row */
	if (!table_element(table, places->rows_at + low / 2, &value))
		return TABLE_DAMAGED;
	low = select_half(value, low) >> TABLE_ROW_RULE_SHIFT;
	if (low == 0)
		return TABLE_NO_RULE;
	low = places->rules_at + low * TABLE_RULE_ELEMENTS;
	if (!table_element(table, low, (void *)rule) || !table_element(table, low + 1, (char *)rule + 8))
		return TABLE_DAMAGED;
	return TABLE_FOUND;
}
#endif
