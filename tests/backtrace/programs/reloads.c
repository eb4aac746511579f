/* A library goes, and another one with other frames takes its place: the cache must not answer for what is gone.
   reloads FIRST SECOND ROUNDS */
#include "compare.h"

#include <dlfcn.h>

typedef int through(int (*call)(void));

static int call_back(void) {
	int wrong = compare();
	__asm__ volatile("" ::: "memory");
	return wrong;
}

int main(int count, char **words) {
	int rounds = count == 4 ? atoi(words[3]) : 0, reused = 0;
	void *before = NULL;
	for (int round = 0; round < rounds; round++) {
		void *library = dlopen(words[1 + round % 2], RTLD_NOW | RTLD_LOCAL);
		through *function = library ? (through *)dlsym(library, "through") : NULL;
		if (!function) {
			fprintf(stderr, "%s\n", dlerror());
			return 2;
		}
		reused += (void *)function == before;
		before = (void *)function;
		function(call_back);
		dlclose(library);
	}
	printf("%d of %d at the same address; ", reused, rounds);
	return finish() || reused != rounds - 1;
}
