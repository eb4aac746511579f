/* What Debian's libgcc needs of its C library, and musl does not have. */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>
#include <string.h>

struct found {
	unsigned long long flags;
	void *start, *end;
	struct link_map *map;
	void *eh_frame;
	unsigned long long reserved[7];
};

struct question {
	uintptr_t address;
	struct found *found;
};

static int look_at(struct dl_phdr_info *info, size_t size, void *argument) {
	struct question *question = argument;
	int is_here = 0;
	(void)size;
	memset(question->found, 0, sizeof *question->found);
	for (int number = 0; number < info->dlpi_phnum; number++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[number];
		if (header->p_type == PT_LOAD && question->address - (info->dlpi_addr + header->p_vaddr) < header->p_memsz)
			is_here = 1;
		if (header->p_type == PT_GNU_EH_FRAME)
			question->found->eh_frame = (void *)(info->dlpi_addr + header->p_vaddr);
	}
	return is_here && question->found->eh_frame;
}

int _dl_find_object(void *address, struct found *found) {
	struct question question = { (uintptr_t)address, found };
	return dl_iterate_phdr(look_at, &question) ? 0 : -1;
}
