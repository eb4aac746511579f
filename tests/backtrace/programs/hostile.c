/* Damaged sections and corrupt stacks. The library is included, so that what it does with bytes can be called alone.
   hostile ROUNDS SEED SECTION...: copies of sections (files) are damaged and read; under AddressSanitizer, no read is outside of them. */
#include "../../../sframegen/backtrace/sframe_backtrace.c"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static uint64_t state;

static uint64_t next(void) {
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t below(uint64_t limit) { return limit ? next() % limit : 0; }

struct file {
	uint8_t *bytes;
	size_t size;
};

static struct file read_file(const char *path) {
	FILE *stream = fopen(path, "rb");
	struct file file = { malloc(1 << 20), 0 };
	if (!stream || !file.bytes)
		exit(2);
	file.size = fread(file.bytes, 1, 1 << 20, stream);
	fclose(stream);
	return file;
}

/* Bits, whole fields of the header, fields of the index, and where the section ends. */
static uint8_t *damaged_copy(struct file file, size_t *size) {
	static const uint32_t extremes[] = { 0, 1, 5, 28, 0x7fffffff, 0x80000000, 0xffffffff, 0xfffffff0, 0x10000 };
	uint8_t *copy;
	*size = below(4) ? file.size : below(file.size + 1);
	copy = malloc(*size ? *size : 1);
	if (!copy)
		exit(2);
	memcpy(copy, file.bytes, *size);
	for (uint64_t times = below(6); times && *size >= 32; times--) {
		size_t at = below(3) ? below(*size) : below(3) ? below(32) : below(*size < 4096 ? *size : 4096);
		if (below(2))
			copy[at] ^= (uint8_t)(1u << below(8));
		else if (at + 4 <= *size)
			memcpy(copy + at, &extremes[below(sizeof extremes / sizeof *extremes)], 4);
	}
	return copy;
}

enum { STACK = 1 << 16 };

/* Three parts: memory that can be read, with words that look like a stack, between pages that cannot. */
static uint8_t *make_stack(void) {
	uint8_t *memory = mmap(NULL, 3 * STACK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || mprotect(memory + STACK, STACK, PROT_READ | PROT_WRITE))
		exit(2);
	return memory + STACK;
}

static void fill_stack(uint8_t *stack, uintptr_t code, size_t code_size) {
	for (size_t at = 0; at < STACK; at += 8) {
		uint64_t word = next();
		if (word % 2 == 0)
			word = code + below(code_size);
		else if (word % 4 == 1)
			word = (uintptr_t)stack + below(STACK + 4096) - (word & 16 ? 0 : 2048);
		memcpy(stack + at, &word, 8);
	}
}

static long rules, walks, frames_seen, ends[8];

static void walk_with(struct object *object, uint8_t *stack, size_t code_size) {
	struct sframe_frame frames[64];
	struct walker walker = { .objects_found = 1, .objects = { *object } };
	enum sframe_end end;
	int count;
	fill_stack(stack, object->start, code_size);
	walker.now.pc = object->start + below(code_size);
	walker.now.sp = (uintptr_t)stack + (below(STACK) & ~7ull);
	walker.now.fp = below(3) ? (uintptr_t)stack + (below(STACK) & ~7ull) : next();
	if (below(16) == 0)
		walker.now.sp = next();
	walker.now.flags = below(2) ? SFRAME_EXACT : 0;
	count = walk(&walker, NULL, frames, 64, &end);
	if (count < 1 || count > 64 || (count < 64 && end == SFRAME_FULL))
		abort();
	for (int at = 1; at + 1 < count; at++)
		if (!(frames[at].flags & SFRAME_EXACT) && !(frames[at + 1].flags & SFRAME_EXACT) && frames[at].cfa < frames[at - 1].cfa)
			abort();
	walks++;
	frames_seen += count;
	ends[end]++;
}

int main(int count, char **words) {
	long rounds = count > 3 ? atol(words[1]) : 0;
	uint8_t *stack = make_stack();
	long opened = 0;
	if (is_readable(0) || is_readable((uintptr_t)stack - 8) || is_readable((uintptr_t)stack + STACK) || !is_readable((uintptr_t)stack) ||
	    !is_readable((uintptr_t)stack + STACK - 8) || is_readable(1ull << 63))
		abort();
	state = count > 2 ? strtoull(words[2], NULL, 0) * 2 + 1 : 1;
	for (long round = 0; round < rounds; round++) {
		struct file file = read_file(words[3 + round % (count - 3)]);
		for (int copies = 0; copies < 64; copies++) {
			struct object object = { .identity = NOT_CACHED, .has = HAS_SECTION };
			const size_t code_size = 1 << 20;
			size_t size;
			uint8_t *bytes = damaged_copy(file, &size);
			uintptr_t origin = (uintptr_t)bytes;
			if (open_section(bytes, size, origin, &object.section)) {
				opened++;
				object.section.code_start = UINTPTR_MAX;
				for (int times = 0; times < 16 && object.section.functions; times++) {
					const uint8_t *entry = object.section.index + below(object.section.functions) * object.section.entry_size;
					uintptr_t start = function_start(&object.section, entry);
					struct rule rule;
					find_rule(&object.section, start + below(below(2) ? 64 : 4096), below(2), &rule);
					(void)pack_rule(&rule);
					rules++;
					object.start = start - code_size / 2;
					object.end = object.start + code_size;
					if (times < 4 && object.start < object.end)
						walk_with(&object, stack, code_size);
				}
			}
			free(bytes);
		}
		free(file.bytes);
	}
	printf("%ld sections opened, %ld rules, %ld walks, %ld frames; ends:", opened, rules, walks, frames_seen);
	for (int end = 0; end < 6; end++)
		printf(" %ld", ends[end]);
	puts("");
	return 0;
}
