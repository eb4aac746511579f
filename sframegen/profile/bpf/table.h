/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* The look-up of an address in a decoded table of unwind rules: ../tables/decoded_table.py has the layout. Allocates nothing, and reads nothing
   outside the table, whatever its bytes are. Before this is included, SFRAME_TABLE_SOURCE is defined, the type of what elements are found
   with, and SFRAME_TABLE_ELEMENT(source, at, to), which copies an element of 8 bytes, or is 0 if there is none. */
#ifndef SFRAME_TABLE_H
#define SFRAME_TABLE_H

typedef unsigned int sframe_table_u32;
typedef unsigned long long sframe_table_u64;

enum { SFRAME_TABLE_PAGE_BITS = 8, SFRAME_TABLE_ROW_RULE_SHIFT = 16, SFRAME_TABLE_RULE_ELEMENTS = 2, SFRAME_TABLE_SEARCH_STEPS = 9 };

/* Places are in elements of 8 bytes. */
struct sframe_table_places {
	sframe_table_u64 base; /* link-time address of the first page */
	sframe_table_u32 pages, index_at, rows_at, rules_at;
};

/* cfa = register cfa_register + cfa_offset, or with CFA_DEREF the word at that address, and without RA_REGISTER ra_register added to it
   ra  = cfa + ra_offset, or with RA_REGISTER register ra_register + ra_offset; with RA_DEREF the word at that address
   fp  = the register itself without FP; else as ra, with the flags of FP
   OUTERMOST: there is no caller. SIGNAL: the frame of a signal handler's caller, whose other registers the kernel has saved. */
enum {
	SFRAME_TABLE_CFA_DEREF = 1,
	SFRAME_TABLE_RA_REGISTER = 2,
	SFRAME_TABLE_RA_DEREF = 4,
	SFRAME_TABLE_FP = 8,
	SFRAME_TABLE_FP_REGISTER = 0x10,
	SFRAME_TABLE_FP_DEREF = 0x20,
	SFRAME_TABLE_OUTERMOST = 0x40,
	SFRAME_TABLE_SIGNAL = 0x80
};

/* Registers have DWARF numbers. */
struct sframe_table_rule {
	int cfa_offset, ra_offset, fp_offset;
	unsigned char cfa_register, ra_register, fp_register, flags;
};

enum { SFRAME_TABLE_FOUND = 0, SFRAME_TABLE_NO_RULE = 1, SFRAME_TABLE_DAMAGED = 2 };

#ifndef SFRAME_TABLE_INLINE
#define SFRAME_TABLE_INLINE static inline __attribute__((always_inline))
#endif

SFRAME_TABLE_INLINE sframe_table_u32 sframe_table_half(sframe_table_u64 element, sframe_table_u32 number)
{
	return (sframe_table_u32)(number & 1 ? element >> 32 : element);
}

/* Finds the rule of the code at a link-time address. Returns SFRAME_TABLE_FOUND, _NO_RULE, or _DAMAGED if the table's parts contradict one
   another. Only after SFRAME_TABLE_FOUND, `rule` has a meaning. */
SFRAME_TABLE_INLINE int sframe_table_find(const struct sframe_table_places *places, SFRAME_TABLE_SOURCE table, sframe_table_u64 address,
					  struct sframe_table_rule *rule)
{
	sframe_table_u64 value, offset = address - places->base;
	sframe_table_u32 page, low, high;

	if (offset >> SFRAME_TABLE_PAGE_BITS >= places->pages)
		return SFRAME_TABLE_NO_RULE;
	page = offset >> SFRAME_TABLE_PAGE_BITS;
	if (!SFRAME_TABLE_ELEMENT(table, places->index_at + page / 2, &value))
		return SFRAME_TABLE_DAMAGED;
	low = sframe_table_half(value, page);
	if ((page & 1) && !SFRAME_TABLE_ELEMENT(table, places->index_at + page / 2 + 1, &value))
		return SFRAME_TABLE_DAMAGED;
	high = sframe_table_half(value, page + 1);
	for (sframe_table_u32 step = 0; step < SFRAME_TABLE_SEARCH_STEPS && low < high; step++) {
		sframe_table_u32 middle = low + (high - low) / 2;

		if (!SFRAME_TABLE_ELEMENT(table, places->rows_at + middle / 2, &value))
			return SFRAME_TABLE_DAMAGED;
		if ((sframe_table_half(value, middle) & 0xff) <= (offset & 0xff))
			low = middle + 1;
		else
			high = middle;
	}
	if (low < high)
		return SFRAME_TABLE_DAMAGED;
	if (low == 0)
		return SFRAME_TABLE_NO_RULE;
	low--; /* perhaps a row of an earlier page: it holds until the next one */
	if (!SFRAME_TABLE_ELEMENT(table, places->rows_at + low / 2, &value))
		return SFRAME_TABLE_DAMAGED;
	low = sframe_table_half(value, low) >> SFRAME_TABLE_ROW_RULE_SHIFT;
	if (low == 0)
		return SFRAME_TABLE_NO_RULE;
	low = places->rules_at + low * SFRAME_TABLE_RULE_ELEMENTS;
	if (!SFRAME_TABLE_ELEMENT(table, low, (void *)rule) || !SFRAME_TABLE_ELEMENT(table, low + 1, (char *)rule + 8))
		return SFRAME_TABLE_DAMAGED;
	return SFRAME_TABLE_FOUND;
}
#endif
