/* Opens two libraries by turns, where the other one was; each function of a library has its name. */
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
static volatile unsigned long done;
__attribute__((noinline)) void uses(void *library)
{
	void (*enter)(int) = (void (*)(int))dlsym(library, "enter");
	for (int n = 0; n < 400; n++) enter(n);
	done++;
}
int main(int count, char **words)
{
	double seconds = count > 1 ? atof(words[1]) : 1;
	struct timespec now, begin;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int n = 0;; n++) {
		void *library = dlopen(n % 2 ? "./libone.so" : "./libtwo.so", RTLD_NOW);
		if (!library) return 1;
		uses(library);
		dlclose(library);
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - begin.tv_sec + 1e-9 * (now.tv_nsec - begin.tv_nsec) > seconds) return 0;
	}
}
