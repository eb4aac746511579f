/* Walks through a library whose file somebody cuts off in the middle of its section. */
#include "sframe_backtrace.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int called(void) {
	struct sframe_frame frames[20];
	enum sframe_end end;
	sframe_backtrace_frames(NULL, frames, 20, &end);
	return (int)end;
}

int main(int count, char **words) {
	void *library = dlopen(words[1], RTLD_NOW);
	int (*call)(int (*)(void));
	int whole, cut;
	if (count != 3 || !library)
		return puts(dlerror()), 1;
	*(void **)&call = dlsym(library, "call");
	whole = call(called);
	if (truncate(words[1], atol(words[2])) != 0)
		return 1;
	cut = call(called);
	printf("%d %d\n", whole == SFRAME_DAMAGED, cut == SFRAME_DAMAGED);
	fflush(stdout);
	_exit(0); /* the library's data are not there */
}
