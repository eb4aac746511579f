/* Look-ups of many addresses in a decoded table: how many have a rule, and how long they took. */
#include "sframe_table.h"
#include <stdint.h>
#include <time.h>

int64_t look_up(const void *bytes, uint64_t size, const uint64_t *addresses, int64_t count, int64_t *found)
{
	struct timespec begin, end;
	struct sframe_table table;
	struct sframe_table_rule rule;

	*found = 0;
	if (!sframe_table_open(&table, bytes, size))
		return -1;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
	for (int64_t i = 0; i < count; i++)
		*found += sframe_table_rule_at(&table, addresses[i], &rule) == SFRAME_TABLE_FOUND;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
	return (end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec;
}
