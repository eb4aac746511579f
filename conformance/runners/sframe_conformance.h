// SPDX-License-Identifier: Apache-2.0
/* Cases of the SFrame conformance suite, and what a reader of SFrame offers to be tried on them. C11; README.md has an example. */
#ifndef SFRAME_CONFORMANCE_H
#define SFRAME_CONFORMANCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SFRAME_CFA = -1, SFRAME_KEPT = -2 }; /* bases besides the DWARF numbers of registers */

/* A value: base + offset, or with `deref` the 8 bytes at that address. SFRAME_KEPT: the register keeps its value. */
struct sframe_place {
	int32_t base;
	int64_t offset;
	bool deref;
};

enum sframe_kind { SFRAME_NONE, SFRAME_RULE, SFRAME_OUTERMOST, SFRAME_UNSUPPORTED };

/* An answer. Only SFRAME_RULE has places. SFRAME_NONE is also the answer for what is damaged. */
struct sframe_rule {
	enum sframe_kind kind;
	struct sframe_place cfa, ra, fp;
	bool ra_signed, signal, key_b;
};

struct sframe_probe {
	uint64_t pc;
	const struct sframe_rule *answers; /* one of them; of none, any will do */
	unsigned count;
};

enum sframe_verdict { SFRAME_VALID, SFRAME_INVALID, SFRAME_OPEN };

/* A section as it is loaded at `address`, for code from `code_start` to `code_end`. Only valid ones may not be refused. */
struct sframe_case {
	const char *name, *why;
	uint8_t version, abi;
	enum sframe_verdict verdict;
	uint64_t address, code_start, code_end;
	const uint8_t *section;
	size_t size;
	const struct sframe_probe *probes;
	unsigned count;
};

extern const struct sframe_case sframe_cases[];
extern const unsigned sframe_case_count;

enum { SFRAME_REPORTS_SIGNED = 1, SFRAME_REPORTS_SIGNAL = 2, SFRAME_REPORTS_KEY = 4 };

/* `versions`, `abis`: bit n for number n. `reports`: which marks of a rule it fills in; the others are not compared.
   open() gets a copy of the case's section, after which no byte can be read, and returns false to refuse it. It may put what find()
   needs into *state, which starts as the copy. find() gets a PC as the case has it: the copy stands for the case's address. */
struct sframe_reader {
	const char *name;
	unsigned versions, abis, reports;
	bool (*open)(const struct sframe_case *one, const uint8_t *section, size_t size, void **state);
	void (*find)(void *state, uint64_t pc, struct sframe_rule *rule);
	void (*close)(void *state); /* may be NULL */
};

extern const struct sframe_reader sframe_reader; /* yours */

#endif
