/* A library that hides its ELF header. */
#define _GNU_SOURCE
#include "sframe_backtrace.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>

static struct sframe_frame frames[50];
static enum sframe_end end;

static int look(void) { return sframe_backtrace_frames(NULL, frames, 50, &end); }

int main(int count, char **words) {
	void *library = dlopen(words[count - 1], RTLD_NOW);
	int (*call)(int (*)(void)) = (int (*)(int (*)(void)))dlsym(library, "call");
	struct link_map *map;
	const char *ended;
	int length;
	dlinfo(library, RTLD_DI_LINKMAP, &map);
	mprotect((void *)map->l_addr, 4096, PROT_NONE);
	length = call(look) - 1;
	ended = sframe_end_text(end);
	mprotect((void *)map->l_addr, 4096, PROT_READ);
	printf("%d: %s; then %s\n", length, ended, call(look) - 1 > length && end == SFRAME_OUTERMOST ? "all" : "not all");
}
