// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* The program and the libraries that are loaded: which one has a PC, where its section is, whether it can go. */
#ifndef SFRAMEGEN_LOADED_OBJECTS_H
#define SFRAMEGEN_LOADED_OBJECTS_H

#include "detached_sections.h"
#include "object_headers.h"
#include <stdatomic.h>
#include <sys/auxv.h>

enum { MOST_PAGES = 1024 };

/* struct dl_find_object of glibc 2.35, for older headers. */
struct loaded_object {
	unsigned long long flags;
	void *start, *end;
	struct link_map *map;
	void *eh_frame;
	unsigned long long reserved[8];
};

/* Functions of the C library that may not be there. Weak references are resolved when this code is loaded, so there is no first call
   that would be different. _dl_find_object takes no lock. */
__attribute__((weak)) int find_loaded_object(void *address, struct loaded_object *found) __asm__("_dl_find_object");
__attribute__((weak)) const char *gnu_libc_version(void) __asm__("gnu_get_libc_version");
__attribute__((weak, visibility("hidden"))) extern const ElfW(Ehdr) __ehdr_start; /* the linker's: of the object that this code is in */

static void open_object(struct object *object)
{
	const ElfW(Phdr) *part, *code = NULL;

	if (object->has != NOT_OPENED)
		return;
	part = find_header(object, PT_GNU_SFRAME);
	for (const ElfW(Phdr) *header = object->headers; header < object->headers + object->header_count; header++)
		if (header->p_type == PT_LOAD && (header->p_flags & (PF_R | PF_X)) == (PF_R | PF_X))
			code = header;
	if (part) {
		const uint8_t *bytes = segment_bytes(object, part);

		/* A file that is cut off ends before its section's last byte. */
		object->has = bytes && part->p_memsz != 0 && is_readable((uintptr_t)bytes + part->p_memsz - 1) &&
			open_section(bytes, part->p_memsz, (uintptr_t)bytes, &object->section) ? HAS_SECTION : BAD_SECTION;
	} else {
		object->has = find_detached(object) ? HAS_SECTION : NO_SECTION;
	}
	object->section.code_start = code ? object->bias + code->p_vaddr : UINTPTR_MAX;
	object->section.code_end = code ? object->bias + code->p_vaddr + code->p_filesz : 0;
}

/* Are these the headers of an object, of which one says that they are here? */
static bool has_itself(const ElfW(Phdr) *headers, size_t size, uintptr_t bias, uint64_t offset)
{
	for (const ElfW(Phdr) *load = headers; load < headers + size / sizeof *headers; load++)
		if (load->p_type == PT_LOAD && offset >= load->p_offset && offset - load->p_offset + size <= load->p_filesz &&
		    bias + load->p_vaddr + (offset - load->p_offset) == (uintptr_t)headers)
			return true;
	return false;
}

/* `start`: of an object's first segment, which begins with the ELF header. The program headers are in it, or in a later segment, whose
   bytes are farther apart in memory than in the file: by whole pages. */
static bool describe_at(struct object *object, uintptr_t start, uintptr_t end, uintptr_t bias)
{
	const ElfW(Ehdr) *file = (const ElfW(Ehdr) *)start;
	size_t size = (size_t)file->e_phnum * sizeof(ElfW(Phdr));
	uintptr_t at = start + file->e_phoff;

	if (memcmp(file->e_ident, ELFMAG, SELFMAG) != 0 || file->e_phentsize != sizeof(ElfW(Phdr)) || file->e_phoff % 8 != 0)
		return false;
	for (int pages = 0; pages < MOST_PAGES && at < end && size <= end - at; pages++, at += PAGE) {
		const ElfW(Phdr) *headers = (const ElfW(Phdr) *)at;

		if (at + size > start + PAGE && !(is_readable(at) && is_readable(at + size - 8)))
			continue;
		if (has_itself(headers, size, bias, file->e_phoff))
			return describe(object, headers, file->e_phnum, bias);
	}
	return false;
}

/* The program itself, whose headers the kernel says. A program without an interpreter is static: this code is in it, and so is the start
   of the file that the linker names. */
static bool describe_program(struct object *program)
{
	const ElfW(Phdr) *headers = (const ElfW(Phdr) *)getauxval(AT_PHDR);
	unsigned count = (unsigned)getauxval(AT_PHNUM);
	uintptr_t bias = 0;

	for (unsigned number = 0; number < count; number++) {
		if (headers[number].p_type == PT_PHDR)
			return describe(program, headers, count, (uintptr_t)headers - headers[number].p_vaddr);
		if (headers[number].p_type == PT_INTERP)
			return false;
	}
	if (&__ehdr_start && __ehdr_start.e_type == ET_DYN)
		bias = (uintptr_t)&__ehdr_start;
	return describe(program, headers, count, bias);
}

static const struct r_debug *loader_list(const struct object *program)
{
	for (unsigned number = 0; number < program->header_count; number++) {
		const ElfW(Phdr) *header = &program->headers[number];

		if (header->p_type != PT_DYNAMIC)
			continue;
		for (const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(program->bias + header->p_vaddr); entry->d_tag != DT_NULL; entry++)
			if (entry->d_tag == DT_DEBUG)
				return (const struct r_debug *)entry->d_un.d_ptr;
	}
	return NULL;
}

/* Returns the object after this one in the part of the loader's list that never changes, NULL at its end. glibc only appends to the list,
   and never unloads what was there at the start; ld.so was. musl never unloads anything. */
static const struct link_map *next_pinned(const struct r_debug *list, const struct link_map *map)
{
	return gnu_libc_version && map->l_addr == list->r_ldbase ? NULL : map->l_next;
}

/* Where objects begin whose answer is known: the address where they are pinned, with UNPINNED where not. Neither changes: the list's part
   does not, and nothing else is ever loaded where a pinned object is. Their first page is readable. */
static _Atomic uintptr_t judged[512];

enum judgement { PINNED, UNPINNED, HIDDEN };

static bool is_in_pinned_part(const struct link_map *map)
{
	struct object program;
	const struct r_debug *list = describe_program(&program) ? loader_list(&program) : NULL;

	for (const struct link_map *at = list ? list->r_map : NULL; at; at = next_pinned(list, at))
		if (at == map)
			return true;
	return false;
}

static enum judgement judge(const struct link_map *map, uintptr_t start)
{
	_Atomic uintptr_t *known = &judged[(start >> 12 ^ start >> 21) % 512];
	uintptr_t answer = atomic_load_explicit(known, memory_order_relaxed);

	if ((answer & ~(uintptr_t)UNPINNED) != start) {
		if (!is_readable(start))
			return HIDDEN;
		answer = start | (is_in_pinned_part(map) ? PINNED : UNPINNED);
		atomic_store_explicit(known, answer, memory_order_relaxed);
	}
	return answer & UNPINNED ? UNPINNED : PINNED;
}

static bool is_in(const struct object *object, uintptr_t pc) { return pc >= object->start && pc < object->end; }

static bool find_in_list(uintptr_t pc, struct object *object)
{
	const struct r_debug *list;
	const struct link_map *map;

	if (!describe_program(object))
		return false;
	if (is_in(object, pc))
		return true;
	list = loader_list(object);
	for (map = list ? list->r_map : NULL; map; map = next_pinned(list, map))
		if (map->l_addr && describe_at(object, map->l_addr, UINTPTR_MAX, map->l_addr) && is_in(object, pc))
			return true;
	return false;
}

/* An object that is not pinned cannot go while it is looked at if it has a frame on this stack. Only a stack that is corrupt can name an
   object that another thread is just unloading. The first of the loader's objects is the program, or in a namespace of its own. */
static bool find_object(uintptr_t pc, struct object *object)
{
	struct loaded_object found;
	enum judgement judgement;

	if (!find_loaded_object || find_loaded_object((void *)pc, &found) != 0)
		return find_in_list(pc, object);
	if (!found.map->l_prev && describe_program(object) && is_in(object, pc))
		return true;
	judgement = judge(found.map, (uintptr_t)found.start);
	if (judgement == HIDDEN || !describe_at(object, (uintptr_t)found.start, (uintptr_t)found.end, found.map->l_addr))
		return false;
	object->identity = judgement == PINNED ? 0 : identity_of(object);
	return true;
}

#endif
