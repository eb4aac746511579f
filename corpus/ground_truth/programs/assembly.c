#include <stdlib.h>
#include <time.h>
void asm_described(void);
static volatile unsigned long done;
__attribute__((noinline)) void calls_assembly(void) { asm_described(); done++; }
int main(int count, char **words)
{
	double seconds = count > 1 ? atof(words[1]) : 1;
	struct timespec now, begin;

	for (clock_gettime(CLOCK_MONOTONIC, &begin);;) {
		for (int n = 0; n < 100; n++) calls_assembly();
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - begin.tv_sec + 1e-9 * (now.tv_nsec - begin.tv_nsec) > seconds) return 0;
	}
}
