/* Reads records from stdin: a table's size, its bytes, the number of addresses, and those. Writes 24 bytes for each address: what the look-up
   returned, or -1 if the bytes are no table, and the rule. */
#include "sframe_table.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	uint64_t size, count, address;

	while (fread(&size, 8, 1, stdin) == 1) {
		void *bytes = malloc(size ? size : 1);
		struct sframe_table table;
		int is_table;

		if (fread(bytes, 1, size, stdin) != size || fread(&count, 8, 1, stdin) != 1)
			return 1;
		is_table = sframe_table_open(&table, bytes, size);
		for (; count > 0; count--) {
			struct {
				int64_t outcome;
				struct sframe_table_rule rule;
			} answer = {-1, {0}};

			if (fread(&address, 8, 1, stdin) != 1)
				return 1;
			if (is_table)
				answer.outcome = sframe_table_rule_at(&table, address, &answer.rule);
			fwrite(&answer, sizeof(answer), 1, stdout);
		}
		free(bytes);
	}
	return 0;
}
