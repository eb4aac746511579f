/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/* Decoded tables of unwind rules (docs/tables.md): the layout of a file, and the look-up of an address. For BPF programs and for user space,
   little-endian. Needs no other header and no library, allocates nothing, and reads nothing outside the table, whatever its bytes are.

   In user space:

	struct sframe_table table;
	struct sframe_table_rule rule;

	if (sframe_table_open(&table, bytes, size) && sframe_table_rule_at(&table, address, &rule) == SFRAME_TABLE_FOUND) ...

   A BPF program has the elements in an array map. Before it includes this file, it defines SFRAME_TABLE_SOURCE, the type of what it finds
   them with, and SFRAME_TABLE_ELEMENT(source, at, to), which copies an element of 8 bytes, or is 0 if there is none. */
#ifndef SFRAME_TABLE_H
#define SFRAME_TABLE_H

typedef unsigned int sframe_table_u32;
typedef unsigned long long sframe_table_u64;

#define SFRAME_TABLE_MAGIC "SFtable3" /* the last character is the version */
enum { SFRAME_TABLE_PAGE_BITS = 8, SFRAME_TABLE_ROW_RULE_SHIFT = 16, SFRAME_TABLE_RULE_ELEMENTS = 2, SFRAME_TABLE_SEARCH_STEPS = 9 };

/* Places are in elements of 8 bytes, which the first byte after the header begins. */
struct sframe_table_places {
	sframe_table_u64 base; /* link-time address of the first page */
	sframe_table_u32 pages, index_at, rows_at, rules_at;
};

/* Of a file. `crc` is the CRC-32 (as in zlib) of all bytes of header and elements, with `crc` = 0. */
struct sframe_table_header {
	char magic[8];
	sframe_table_u64 machine; /* e_machine of the ELF file */
	sframe_table_u64 base, pages, index_at, rows_at, rules_at, rows, rules;
	sframe_table_u64 left_out; /* functions and rules that the layout cannot express */
	sframe_table_u64 size;     /* bytes of the elements */
	sframe_table_u64 crc;
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

#ifndef SFRAME_TABLE_ELEMENT
#define SFRAME_TABLE_IN_MEMORY 1
#define SFRAME_TABLE_SOURCE const struct sframe_table *
#define SFRAME_TABLE_ELEMENT(table, at, to) sframe_table_element(table, at, to)

struct sframe_table {
	struct sframe_table_places places;
	const unsigned char *elements;
	sframe_table_u64 count;
};

/* Copies an element; returns 0 if there is no such element. */
SFRAME_TABLE_INLINE int sframe_table_element(const struct sframe_table *table, sframe_table_u32 at, void *to)
{
	if (at >= table->count)
		return 0;
	__builtin_memcpy(to, table->elements + 8ull * at, 8);
	return 1;
}

/* Returns 1 if `size` bytes are a table of this version with all its parts. Does not compute the CRC. The bytes are borrowed. */
SFRAME_TABLE_INLINE int sframe_table_open(struct sframe_table *table, const void *bytes, sframe_table_u64 size)
{
	struct sframe_table_header header;
	sframe_table_u64 count;

	if (size < sizeof(header))
		return 0;
	__builtin_memcpy(&header, bytes, sizeof(header));
	count = header.size / 8;
	if (__builtin_memcmp(header.magic, SFRAME_TABLE_MAGIC, 8) || header.size != size - sizeof(header) || header.size % 8 ||
	    count >> 32 || header.pages >> 32 || header.rows >> 32 || header.rules > 1ull << SFRAME_TABLE_ROW_RULE_SHIFT)
		return 0;
	if (header.index_at > count || header.pages / 2 + 1 > count - header.index_at || header.rows_at > count ||
	    (header.rows + 1) / 2 > count - header.rows_at || header.rules_at > count ||
	    header.rules * SFRAME_TABLE_RULE_ELEMENTS > count - header.rules_at)
		return 0;
	table->places.base = header.base;
	table->places.pages = (sframe_table_u32)header.pages;
	table->places.index_at = (sframe_table_u32)header.index_at;
	table->places.rows_at = (sframe_table_u32)header.rows_at;
	table->places.rules_at = (sframe_table_u32)header.rules_at;
	table->elements = (const unsigned char *)bytes + sizeof(header);
	table->count = count;
	return 1;
}

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

#ifdef SFRAME_TABLE_IN_MEMORY

SFRAME_TABLE_INLINE int sframe_table_rule_at(const struct sframe_table *table, sframe_table_u64 address, struct sframe_table_rule *rule)
{
	return sframe_table_find(&table->places, table, address, rule);
}

#endif
#endif
