// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Finds the rule for a PC in a section: the function in the index, which is sorted, then the last of its rows that begins at or before the
   PC, then the rule in the words of that row. Every number in the section is checked before it is used. */
#ifndef SFRAMEGEN_SECTIONS_H
#define SFRAMEGEN_SECTIONS_H

#include "machines.h"

enum { BASE_CFA = 0xfe, IN_REGISTER = 0xff }; /* values of `base` that are not numbers of registers */

/* The location of a value: *(base + offset), or without `deref` the value base + offset. IN_REGISTER: it is still in its own register. */
struct value {
	int32_t offset;
	uint8_t base;
	bool deref;
};

enum rule_kind { RULE, RULE_SIGNAL, RULE_OUTERMOST, RULE_INJECTED, RULE_NONE, RULE_UNKNOWN, RULE_DAMAGED };

/* How to find a frame's caller. RULE_SIGNAL: the caller was interrupted, and the kernel saved all of its registers. RULE_INJECTED: the
   frame was not called, but a library put its return address on the stack. RULE_UNKNOWN: there is no rule, and guesses are forbidden. */
struct rule {
	enum rule_kind kind;
	struct value cfa, ra, fp;
};

/* Most rules fit into a word of the cache: (cfa, ra, fp) = (SP or FP + offset, *(cfa + offset), *(cfa + offset) or in its register).
   Bits 0 to 3: a PACKED_ constant and flags; 8: FP's offset; 24: RA's offset; 40: the CFA's offset. If FP is in its register, its offset
   is that of RA, so that a reader can load first and decide afterwards, without a branch. */
typedef uint64_t packed_rule;

enum { PACKED_RULE, PACKED_OUTERMOST, PACKED_NONE, PACKED_OTHER, PACKED_KIND = 3, PACKED_BASE_FP = 4, PACKED_FP_SAVED = 8 };

static inline int32_t cfa_offset(packed_rule rule) { return (int32_t)((int64_t)rule >> 40); }
static inline int32_t ra_offset(packed_rule rule) { return RA_OFFSET ? RA_OFFSET : (int16_t)(rule >> 24); }
static inline int32_t fp_offset(packed_rule rule) { return (int16_t)(rule >> 8); }

static bool fits_bits(int32_t value, int bits) { return value >= -(1 << (bits - 1)) && value < 1 << (bits - 1); }

static packed_rule pack_rule(const struct rule *rule)
{
	const struct value *cfa = &rule->cfa, *ra = &rule->ra, *fp = &rule->fp;
	packed_rule packed = PACKED_RULE;

	if (rule->kind == RULE_OUTERMOST || rule->kind == RULE_NONE)
		return rule->kind == RULE_NONE ? PACKED_NONE : PACKED_OUTERMOST;
	if (rule->kind != RULE || cfa->deref || (cfa->base != SP && cfa->base != FP) || !fits_bits(cfa->offset, 24))
		return PACKED_OTHER;
	if (ra->base != BASE_CFA || !ra->deref || !fits_bits(ra->offset, 16) || (RA_OFFSET != 0 && ra->offset != RA_OFFSET))
		return PACKED_OTHER;
	if (fp->base != IN_REGISTER && (fp->base != BASE_CFA || !fp->deref || !fits_bits(fp->offset, 16)))
		return PACKED_OTHER;
	if (cfa->base == FP)
		packed |= PACKED_BASE_FP;
	if (fp->base != IN_REGISTER)
		packed |= PACKED_FP_SAVED;
	packed |= (uint64_t)(uint16_t)(fp->base != IN_REGISTER ? fp->offset : ra->offset) << 8;
	return packed | (uint64_t)(uint16_t)ra->offset << 24 | (uint64_t)cfa->offset << 40;
}

struct header {
	uint16_t magic;
	uint8_t version, flags, abi;
	int8_t fixed_fp_offset, fixed_ra_offset;
	uint8_t auxiliary_size;
	uint32_t functions, rows, rows_size, index_at, rows_at;
};

_Static_assert(sizeof(struct header) == 28, "as in the file");

enum { MAGIC = 0xdee2, FLAG_SORTED = 1, FLAG_FRAME_POINTERS = 2, FLAG_RELATIVE = 4 };

/* A section whose header was checked: `functions` entries of the index and `rows_size` bytes of rows can be read. */
struct section {
	const uint8_t *start, *index, *rows;
	uint32_t functions, rows_size;
	uintptr_t origin; /* run-time address that the starts of functions count from */
	uintptr_t code_start, code_end; /* code that can be read */
	uint8_t version, entry_size;
	bool is_relative; /* a function's start counts from its own field */
};

static uint16_t load16(const uint8_t *at) { uint16_t value; memcpy(&value, at, sizeof value); return value; }
static uint32_t load32(const uint8_t *at) { uint32_t value; memcpy(&value, at, sizeof value); return value; }
static uint64_t load64(const uint8_t *at) { uint64_t value; memcpy(&value, at, sizeof value); return value; }

/* Returns false if something in the header is wrong or unknown. */
static bool open_section(const uint8_t *bytes, size_t size, uintptr_t origin, struct section *section)
{
	struct header header;
	size_t entry_size, room;

	if (size < sizeof header)
		return false;
	memcpy(&header, bytes, sizeof header);
	if (header.magic != MAGIC || header.abi != MACHINE_ABI || header.fixed_fp_offset != 0 || header.fixed_ra_offset != RA_OFFSET)
		return false;
	if (header.version == 3)
		entry_size = 16;
	else if (header.version == 2)
		entry_size = 20;
	else
		return false;
	if ((header.flags & ~(FLAG_FRAME_POINTERS | FLAG_RELATIVE)) != FLAG_SORTED || size - sizeof header < header.auxiliary_size)
		return false;
	room = size - sizeof header - header.auxiliary_size;
	if (header.index_at > room || header.functions > (room - header.index_at) / entry_size)
		return false;
	if (header.rows_at > room || header.rows_size > room - header.rows_at)
		return false;
	bytes += sizeof header + header.auxiliary_size;
	*section = (struct section){ .start = bytes - sizeof header - header.auxiliary_size, .index = bytes + header.index_at,
		.rows = bytes + header.rows_at, .functions = header.functions, .rows_size = header.rows_size, .origin = origin,
		.version = header.version, .entry_size = (uint8_t)entry_size, .is_relative = (header.flags & FLAG_RELATIVE) != 0 };
	return true;
}

/* The rows of a function: `left` bytes from `rows` on can be read. */
struct function {
	const uint8_t *rows;
	size_t left;
	uint32_t count, size;
	uintptr_t offset; /* of the PC from the function's start */
	uint8_t info, block_size;
	bool is_flexible, is_signal;
};

enum { INFO_START_WIDTH = 0x0f, INFO_BLOCKS = 0x10, INFO_SIGNAL = 0x80, TYPE_MASK = 0x1f, TYPE_FLEXIBLE = 1 };

static inline uintptr_t function_start(const struct section *section, const uint8_t *entry)
{
	uintptr_t from = section->origin + (section->is_relative ? (uintptr_t)(entry - section->start) : 0);

	return from + (section->version == 3 ? load64(entry) : (uint64_t)(int32_t)load32(entry));
}

static bool follows_call(const struct section *section, uintptr_t pc)
{
	if (pc > section->code_end || pc - MAX_CALL_SIZE < section->code_start || !has_readable_call(pc))
		return true;
	return ends_call((const uint8_t *)pc);
}

/* An index entry has, in version 3, the function's start (8 bytes), size and offset of its rows (4 each); before the rows are their number
   (2 bytes), info, type and block size. Version 2 has all this in the entry, with 4 bytes for start, size, offset and number, but no type.
   If a damaged index is not in order, the search finds an entry that does not contain the PC, or a wrong rule, but reads nothing else. */
static enum rule_kind find_function(const struct section *section, uintptr_t pc, struct function *function)
{
	const uint8_t *entry;
	uint32_t low = 0, high = section->functions, at;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (function_start(section, section->index + (size_t)middle * section->entry_size) <= pc)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0)
		return RULE_NONE;
	entry = section->index + (size_t)(low - 1) * section->entry_size;
	function->offset = pc - function_start(section, entry);
	function->size = load32(entry + (section->version == 3 ? 8 : 4));
	if (function->offset >= function->size)
		return RULE_NONE;
	at = load32(entry + (section->version == 3 ? 12 : 8));
	if (at > section->rows_size)
		return RULE_DAMAGED;
	function->rows = section->rows + at;
	function->left = section->rows_size - at;
	if (section->version == 2) {
		function->count = load32(entry + 12);
		function->info = entry[16];
		function->block_size = entry[17];
		function->is_flexible = function->is_signal = false;
		return RULE;
	}
	if (function->left < 5)
		return RULE_DAMAGED;
	function->count = load16(function->rows);
	function->info = function->rows[2];
	function->is_signal = function->info & INFO_SIGNAL;
	function->is_flexible = (function->rows[3] & TYPE_MASK) == TYPE_FLEXIBLE;
	if ((function->rows[3] & TYPE_MASK) > TYPE_FLEXIBLE)
		return RULE_DAMAGED;
	function->block_size = function->rows[4];
	function->rows += 5;
	function->left -= 5;
	return function->count == 0 ? RULE_OUTERMOST : RULE;
}

/* The data words of a row. */
struct words {
	const uint8_t *at;
	unsigned count, width;
};

struct row {
	struct words words;
	uint8_t info;
	bool is_flexible, is_signal;
	bool has_next; /* the byte after the PC has the same row */
};

static int32_t signed_word(const struct words *words, unsigned number)
{
	const uint8_t *at = words->at + number * words->width;

	if (words->width == 1)
		return (int8_t)*at;
	return words->width == 2 ? (int16_t)load16(at) : (int32_t)load32(at);
}

static uint32_t unsigned_word(const struct words *words, unsigned number)
{
	uint32_t word = (uint32_t)signed_word(words, number);

	return words->width == 4 ? word : word & ((1u << 8 * words->width) - 1);
}

enum { ROW_BASE_SP = 1 };

/* Finds the last row that begins at or before the PC. A row is its start, an info byte and words. Bits 1 to 4 of the info are the number of
   words, bits 5 and 6 select their width. */
static enum rule_kind find_row(const struct function *function, struct row *row)
{
	unsigned width = 1u << (function->info & INFO_START_WIDTH);
	const uint8_t *at = function->rows, *end = at + function->left;
	bool has_blocks = function->info & INFO_BLOCKS;
	uintptr_t offset = function->offset;
	enum rule_kind found = RULE_NONE;

	if (width > 4 || (has_blocks && function->block_size == 0))
		return RULE_DAMAGED;
	if (has_blocks)
		offset %= function->block_size;
	*row = (struct row){ .is_flexible = function->is_flexible, .is_signal = function->is_signal,
		.has_next = !has_blocks && offset + 1 < function->size };
	for (uint32_t number = 0; number < function->count; number++) {
		struct words words;
		uint32_t start;

		if ((size_t)(end - at) < width + 1)
			return RULE_DAMAGED;
		start = width == 1 ? *at : width == 2 ? load16(at) : load32(at);
		if (start > offset) {
			row->has_next &= start != offset + 1;
			break;
		}
		words = (struct words){ .at = at + width + 1, .count = at[width] >> 1 & 15, .width = 1u << (at[width] >> 5 & 3) };
		if (words.width > 4 || (size_t)(end - words.at) < words.count * words.width)
			return RULE_DAMAGED;
		row->words = words;
		row->info = at[width];
		found = RULE;
		at = words.at + words.count * words.width;
	}
	return found;
}

/* Finds the row for a PC. A function without rows is outermost, as a row without words is. */
static enum rule_kind find_row_at(const struct section *section, uintptr_t pc, struct row *row)
{
	struct function function;
	enum rule_kind kind = find_function(section, pc, &function);

	row->has_next = kind == RULE_OUTERMOST && function.offset + 1 < function.size;
	return kind == RULE ? find_row(&function, row) : kind;
}

/* A word of a damaged section may be too large; the result then wraps around. */
static int32_t scale_cfa_offset(int32_t word) { return (int32_t)((uint32_t)word * CFA_SCALE + CFA_BIAS); }

/* The words of a default row are the offsets of the CFA, RA and FP; there is none for RA if the machine fixes it. */
static enum rule_kind read_default_row(const struct words *words, uint8_t info, uint8_t version, struct rule *rule)
{
	struct value *tracked[] = { &rule->ra, &rule->fp };
	unsigned number = 1;

	rule->cfa = (struct value){ .base = info & ROW_BASE_SP ? SP : FP, .offset = scale_cfa_offset(signed_word(words, 0)) };
	for (unsigned which = RA_OFFSET ? 1 : 0; which < 2 && number < words->count; which++, number++) {
		int32_t offset = signed_word(words, number);

		if (MACHINE_ABI == 4 && version == 2 && (offset & 1)) /* s390x: the number of a register */
			*tracked[which] = (struct value){ .base = (uint8_t)(offset >> 1) };
		else if (offset != 0 || which == 1) /* an RA offset of 0 stands for none */
			*tracked[which] = (struct value){ .base = BASE_CFA, .offset = offset, .deref = true };
	}
	return number == words->count ? RULE : RULE_DAMAGED;
}

/* The words of a flexible row are a control word and an offset for each of CFA, RA and FP, or a 0 if the machine fixes it. Bit 0 of a
   control word: the base is the register in bits 3 and up, not the CFA; bit 1: the value is in memory. */
static enum rule_kind read_flexible_row(const struct words *words, struct rule *rule)
{
	struct value *tracked[] = { &rule->cfa, &rule->ra, &rule->fp };
	unsigned number = 0;

	for (unsigned which = 0; which < 3 && number < words->count; which++) {
		uint32_t control = unsigned_word(words, number++);

		if (control == 0)
			continue;
		if (number == words->count || control >> 3 > 31)
			return RULE_DAMAGED;
		*tracked[which] = (struct value){ .base = control & 1 ? (uint8_t)(control >> 3) : BASE_CFA, .deref = control & 2,
			.offset = signed_word(words, number++) };
	}
	if (CFA_SCALE != 1 && rule->cfa.base < 32)
		rule->cfa.offset = scale_cfa_offset(rule->cfa.offset);
	return number == words->count && rule->cfa.base < 32 ? RULE : RULE_DAMAGED;
}

/* The rule of a return address is that of the call before it. If a library put the address on the stack, there is no call before it: a
   signal handler returns there, an exception is caught there, or makecontext() chose it. The bytes of the call are read only if its row
   ends with it, because they are not known to be readable. */
static void find_rule(const struct section *section, uintptr_t pc, bool is_return, struct rule *rule)
{
	struct row row;
	bool is_injected = false;

	rule->cfa = rule->fp = rule->ra = (struct value){ .base = IN_REGISTER };
	if (RA_OFFSET)
		rule->ra = (struct value){ .base = BASE_CFA, .offset = RA_OFFSET, .deref = true };
	rule->kind = find_row_at(section, pc - is_return, &row);
	if (is_return && !row.has_next && !follows_call(section, pc)) {
		is_injected = true;
		rule->kind = find_row_at(section, pc, &row);
	}
	if (rule->kind != RULE)
		return;
	if (row.words.count == 0)
		rule->kind = RULE_OUTERMOST;
	else if (row.is_flexible)
		rule->kind = read_flexible_row(&row.words, rule);
	else
		rule->kind = read_default_row(&row.words, row.info, section->version, rule);
	if (rule->kind == RULE)
		rule->kind = row.is_signal ? RULE_SIGNAL : is_injected ? RULE_INJECTED : RULE;
}

#endif
