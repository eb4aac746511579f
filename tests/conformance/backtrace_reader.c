/* sframegen's C library as a reader of the conformance suite: what finds rules in a section, called alone. */
#include "../../conformance/runners/sframe_conformance.h"

#include "../../sframegen/backtrace/sections.h"

#include <stdio.h>
#include <stdlib.h>

/* The library searches, and linkers sort: of a section that does not say so it makes no use. */
static bool open_case(const struct sframe_case *one, const uint8_t *bytes, size_t size, void **state)
{
	struct section *section;

	if (one->verdict == SFRAME_VALID && !(bytes[3] & FLAG_SORTED)) {
		*state = NULL;
		return (1u << bytes[2] & sframe_reader.versions) != 0;
	}
	section = malloc(sizeof *section);

	if (!section || !open_section(bytes, size, one->address, section)) {
		free(section);
		return false;
	}
	*state = section;
	return true;
}

static struct sframe_place place_of(const struct value *value)
{
	int32_t base = value->base == IN_REGISTER ? SFRAME_KEPT : value->base == BASE_CFA ? SFRAME_CFA : value->base;

	return (struct sframe_place){ .base = base, .offset = value->offset, .deref = value->deref };
}

static void find(void *state, uint64_t pc, struct sframe_rule *answer)
{
	struct rule rule;

	if (!state) {
		answer->kind = SFRAME_UNSUPPORTED;
		return;
	}
	find_rule(state, pc, false, &rule);
	if (rule.kind == RULE_OUTERMOST)
		answer->kind = SFRAME_OUTERMOST;
	if (rule.kind != RULE && rule.kind != RULE_SIGNAL)
		return;
	*answer = (struct sframe_rule){ .kind = SFRAME_RULE, .cfa = place_of(&rule.cfa), .ra = place_of(&rule.ra),
		.fp = place_of(&rule.fp), .signal = rule.kind == RULE_SIGNAL };
}

const struct sframe_reader sframe_reader = {
	.name = "libsframe-backtrace", .versions = 1u << 2 | 1u << 3, .abis = 1u << MACHINE_ABI, .reports = SFRAME_REPORTS_SIGNAL,
	.open = open_case, .find = find, .close = free,
};
