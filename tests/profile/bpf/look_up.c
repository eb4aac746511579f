/* Reads records from stdin: a table's base, its pages and the places of its parts, its size, its bytes, the number of addresses, and those.
   Writes 24 bytes for each address: what the look-up returned, and the rule. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;

struct elements {
	unsigned char *bytes;
	uint64_t size;
};

static int table_element(void *from, u32 at, void *to) {
	const struct elements *table = from;
	if (at >= table->size / 8)
		return 0;
	memcpy(to, table->bytes + 8ull * at, 8);
	return 1;
}

#include "table.h"

int main(void) {
	struct table_places places;
	struct elements table;
	uint64_t count, address;
	while (fread(&places, sizeof(places), 1, stdin) == 1 && fread(&table.size, 8, 1, stdin) == 1) {
		table.bytes = malloc(table.size ? table.size : 1);
		if (fread(table.bytes, 1, table.size, stdin) != table.size || fread(&count, 8, 1, stdin) != 1)
			return 1;
		for (; count > 0; count--) {
			struct {
				int64_t outcome;
				struct table_rule rule;
			} answer = {0};
			if (fread(&address, 8, 1, stdin) != 1)
				return 1;
			answer.outcome = find_in_table(&places, &table, address, &answer.rule);
			fwrite(&answer, sizeof(answer), 1, stdout);
		}
		free(table.bytes);
	}
	return 0;
}
