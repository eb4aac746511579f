#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
static int compare(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }
int main(int argc, char **argv)
{
	static double values[5000];
	char text[64], *copy;
	for (int round = 0; round < atoi(argv[1]); round++) {
		for (int i = 0; i < 5000; i++) {
			snprintf(text, sizeof text, "%.12g", sin(i * round) * 1e6);
			values[i] = strtod(text, NULL);
			copy = malloc(64 + i % 300);
			memset(copy, 1, 64 + i % 300);
			if (strlen(text) > 100 || memchr(copy, 2, 64)) return 1;
			free(copy);
		}
		qsort(values, 5000, sizeof *values, compare);
	}
	return 0;
}
