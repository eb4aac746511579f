/* Reads records from stdin: a table's base, its pages and the places of its parts, its size, its bytes, the number of addresses, and those.
   Writes 24 bytes for each address: what the look-up returned, and the rule. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct elements {
	unsigned char *bytes;
	uint64_t size;
};

static int element(const struct elements *table, unsigned at, void *to)
{
	if (at >= table->size / 8)
		return 0;
	memcpy(to, table->bytes + 8ull * at, 8);
	return 1;
}

#define SFRAME_TABLE_SOURCE const struct elements *
#define SFRAME_TABLE_ELEMENT(table, at, to) element(table, at, to)
#include "table.h"

int main(void)
{
	struct sframe_table_places places;
	struct elements table;
	uint64_t count, address;

	while (fread(&places, sizeof(places), 1, stdin) == 1 && fread(&table.size, 8, 1, stdin) == 1) {
		table.bytes = malloc(table.size ? table.size : 1);
		if (fread(table.bytes, 1, table.size, stdin) != table.size || fread(&count, 8, 1, stdin) != 1)
			return 1;
		for (; count > 0; count--) {
			struct {
				int64_t outcome;
				struct sframe_table_rule rule;
			} answer = {0};

			if (fread(&address, 8, 1, stdin) != 1)
				return 1;
			answer.outcome = sframe_table_find(&places, &table, address, &answer.rule);
			fwrite(&answer, sizeof(answer), 1, stdout);
		}
		free(table.bytes);
	}
	return 0;
}
