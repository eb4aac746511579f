/* Code made at run time, described by its tables; then removed, and no longer described. */
#define _GNU_SOURCE
#include "sframe_backtrace.h"
#include "sframegen_jit.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* sub $24,%rsp; call *%rdi; add $24,%rsp; ret */
static const unsigned char bytes[] = { 0x48, 0x83, 0xec, 24, 0xff, 0xd7, 0x48, 0x83, 0xc4, 24, 0xc3 };

static struct sframe_frame frames[64];
static enum sframe_end end;
static int count;

static int look(void) {
	count = sframe_backtrace_frames(NULL, frames, 64, &end);
	return 1;
}

static int say(const char *what, const unsigned char *code) {
	int at = -1, guesses = 0;
	((int (*)(int (*)(void)))(void *)code)(look);
	for (int number = 0; number < count; number++) {
		guesses += (frames[number].flags & SFRAME_GUESS) != 0;
		if ((const unsigned char *)frames[number].pc == code + 6)
			at = number;
	}
	printf("%s: frame %d, %s, %s\n", what, at, guesses ? "guesses" : "no guesses", sframe_end_text(end));
	return count;
}

int main(void) {
	unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static unsigned char memory[4096] __attribute__((aligned(8)));
	static struct sframegen_jit_region region;
	struct sframegen_jit_table *table = sframegen_jit_init(memory, sizeof memory);
	const unsigned char info = SFRAMEGEN_JIT_CFA_SP | SFRAMEGEN_JIT_RA_SAVED;
	const struct sframegen_jit_fre entries[] = { { .size = 4, .ip_off = 0, .cfa_off = 8, .ra_off = -8, .info = info },
		{ .size = 6, .ip_off = 4, .cfa_off = 32, .ra_off = -8, .info = info },
		{ .size = 1, .ip_off = 10, .cfa_off = 8, .ra_off = -8, .info = info } };
	memcpy(code, bytes, sizeof bytes);
	for (int at = 0; at < 3; at++)
		sframegen_jit_append(table, entries[at]);
	say("unknown", code);
	sframegen_jit_register(&region, code, code + sizeof bytes, table);
	say("described", code);
	sframegen_jit_remove(table, 4);
	say("removed", code);
	sframegen_jit_unregister(&region);
	say("unregistered", code);
	return 0;
}
