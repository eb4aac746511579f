// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Finds the loaded program or library that contains a PC, reads its program headers, and decides whether it can ever be unloaded. */
#ifndef SFRAMEGEN_LOADED_OBJECTS_H
#define SFRAMEGEN_LOADED_OBJECTS_H

#include "sections.h"
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <sys/auxv.h>

#ifndef PT_GNU_SFRAME
#define PT_GNU_SFRAME 0x6474e554
#endif

/* A loaded program or library, as one walk sees it. `identity` goes into the cache's keys: 0 for a pinned object, which is never unloaded;
   a hash of the build-id and the load address for another one; NOT_CACHED if that has no build-id. The section is opened only for rules
   that are not in the cache. */
struct object {
	uintptr_t start, end, bias;
	uint64_t identity;
	const ElfW(Phdr) *headers;
	unsigned header_count;
	enum { NOT_OPENED, NO_SECTION, HAS_SECTION, BAD_SECTION } has;
	struct section section;
};

enum { NOT_CACHED = 1 };

/* Returns the next header of a type after the given one, or the first one after NULL; NULL at the end. */
static const ElfW(Phdr) *next_header(const ElfW(Phdr) *headers, unsigned count, uint32_t type, const ElfW(Phdr) *after)
{
	const ElfW(Phdr) *header = after ? after + 1 : headers;

	while (header < headers + count && header->p_type != type)
		header++;
	return header < headers + count ? header : NULL;
}

#define EACH_HEADER(header, type, object) \
	for (const ElfW(Phdr) *header = NULL; (header = next_header((object)->headers, (object)->header_count, type, header)) != NULL;)

/* Returns the last header of a type; NULL if there is none. */
static const ElfW(Phdr) *find_header(const struct object *object, uint32_t type)
{
	const ElfW(Phdr) *found = NULL;

	EACH_HEADER(header, type, object)
		found = header;
	return found;
}

/* Returns the bytes of a part if they lie in a readable segment, and come from the file; else NULL. */
static const uint8_t *segment_bytes(const struct object *object, const ElfW(Phdr) *part)
{
	EACH_HEADER(load, PT_LOAD, object) {
		uint64_t offset = part->p_vaddr - load->p_vaddr;

		if ((load->p_flags & PF_R) && offset <= load->p_filesz && part->p_memsz <= load->p_filesz - offset)
			return (const uint8_t *)(object->bias + part->p_vaddr);
	}
	return NULL;
}

static bool is_code(const struct object *object, uintptr_t pc)
{
	EACH_HEADER(load, PT_LOAD, object)
		if ((load->p_flags & (PF_R | PF_X)) == (PF_R | PF_X) && pc - (object->bias + load->p_vaddr) < load->p_memsz)
			return true;
	return false;
}

static uint64_t mix_hash(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
	return hash ^ hash >> 29;
}

/* Returns the build-id's bytes and their number; 0 if there is none. */
static size_t find_build_id(const struct object *object, const uint8_t **id)
{
	EACH_HEADER(header, PT_NOTE, object) {
		const uint8_t *note = segment_bytes(object, header);
		size_t left = note ? header->p_memsz : 0;

		while (left >= 12) {
			uint64_t name = (load32(note) + 3ull) & ~3ull, size = load32(note + 4), whole = 12 + name + ((size + 3) & ~3ull);

			if (12 + name + size > left)
				break;
			if (load32(note + 8) == NT_GNU_BUILD_ID && load32(note) == 4 && memcmp(note + 12, "GNU", 4) == 0) {
				*id = note + 16;
				return size;
			}
			if (whole > left)
				break;
			note += whole;
			left -= whole;
		}
	}
	return 0;
}

/* Objects with equal build-ids at equal addresses have equal rules, whatever was unloaded and loaded in between. */
static uint64_t identity_of(const struct object *object)
{
	const uint8_t *id;
	size_t size = find_build_id(object, &id);
	uint64_t hash = mix_hash(object->bias, size), word;

	if (size < 8)
		return NOT_CACHED;
	for (size_t at = 0; at + 8 <= size; at += 8)
		hash = mix_hash(hash, load64(id + at));
	memcpy(&word, id + size - 8, 8);
	return mix_hash(hash, word) | 1ull << 63; /* no address has this bit */
}

/* Sets everything but the identity and the section. Returns false if the headers have no segment with bytes. */
static bool describe_object(struct object *object, const ElfW(Phdr) *headers, unsigned count, uintptr_t bias)
{
	*object = (struct object){ .start = UINTPTR_MAX, .bias = bias, .headers = headers, .header_count = count };
	EACH_HEADER(load, PT_LOAD, object) {
		if (bias + load->p_vaddr < object->start)
			object->start = bias + load->p_vaddr;
		if (bias + load->p_vaddr + load->p_memsz > object->end)
			object->end = bias + load->p_vaddr + load->p_memsz;
	}
	return object->start < object->end;
}

enum { MAX_PAGES = 1024 };

/* struct dl_find_object of glibc 2.35, for older headers. */
struct loaded_object {
	unsigned long long flags;
	void *start, *end;
	struct link_map *map;
	void *eh_frame;
	unsigned long long reserved[8];
};

/* Functions that the C library may lack. Weak references are resolved when this code is loaded, not during the first call.
   _dl_find_object takes no lock. */
__attribute__((weak)) int find_loaded_object(void *address, struct loaded_object *found) __asm__("_dl_find_object");
__attribute__((weak)) const char *gnu_libc_version(void) __asm__("gnu_get_libc_version");
__attribute__((weak, visibility("hidden"))) extern const ElfW(Ehdr) __ehdr_start; /* set by the linker, for the object with this code */

/* Returns true if one of the headers maps the headers themselves to this address, as those of a real object do. */
static bool contains_headers(const ElfW(Phdr) *headers, size_t size, uintptr_t bias, uint64_t offset)
{
	for (const ElfW(Phdr) *load = headers; load < headers + size / sizeof *headers; load++)
		if (load->p_type == PT_LOAD && offset >= load->p_offset && offset - load->p_offset + size <= load->p_filesz &&
		    bias + load->p_vaddr + (offset - load->p_offset) == (uintptr_t)headers)
			return true;
	return false;
}

/* `start`: of an object's first segment, which begins with the ELF header. The program headers are in it, or in a later segment, which
   is farther away in memory than in the file, by whole pages. */
static bool describe_object_at(struct object *object, uintptr_t start, uintptr_t end, uintptr_t bias)
{
	const ElfW(Ehdr) *file = (const ElfW(Ehdr) *)start;
	size_t size = (size_t)file->e_phnum * sizeof(ElfW(Phdr));
	uintptr_t at = start + file->e_phoff;

	if (memcmp(file->e_ident, ELFMAG, SELFMAG) != 0 || file->e_phentsize != sizeof(ElfW(Phdr)) || file->e_phoff % 8 != 0)
		return false;
	for (int pages = 0; pages < MAX_PAGES && at < end && size <= end - at; pages++, at += PAGE) {
		const ElfW(Phdr) *headers = (const ElfW(Phdr) *)at;

		if (at + size > start + PAGE && !(is_readable(at) && is_readable(at + size - 8)))
			continue;
		if (contains_headers(headers, size, bias, file->e_phoff))
			return describe_object(object, headers, file->e_phnum, bias);
	}
	return false;
}

/* Describes the program itself, whose headers the kernel passes. A program without an interpreter is static: it contains this code, so
   that __ehdr_start is its own. */
static bool describe_main_program(struct object *program)
{
	const ElfW(Phdr) *headers = (const ElfW(Phdr) *)getauxval(AT_PHDR);
	unsigned count = (unsigned)getauxval(AT_PHNUM);
	uintptr_t bias = 0;

	for (unsigned number = 0; number < count; number++) {
		if (headers[number].p_type == PT_PHDR)
			return describe_object(program, headers, count, (uintptr_t)headers - headers[number].p_vaddr);
		if (headers[number].p_type == PT_INTERP)
			return false;
	}
	if (&__ehdr_start && __ehdr_start.e_type == ET_DYN)
		bias = (uintptr_t)&__ehdr_start;
	return describe_object(program, headers, count, bias);
}

static const struct r_debug *find_loader_list(const struct object *program)
{
	EACH_HEADER(header, PT_DYNAMIC, program)
		for (const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(program->bias + header->p_vaddr); entry->d_tag != DT_NULL; entry++)
			if (entry->d_tag == DT_DEBUG)
				return (const struct r_debug *)entry->d_un.d_ptr;
	return NULL;
}

/* Returns the next object in the part of the loader's list that never changes, NULL at its end. glibc only appends to the list, and never
   unloads the objects of the program's start, the last of which is ld.so. musl never unloads anything. */
static const struct link_map *next_pinned_object(const struct r_debug *list, const struct link_map *map)
{
	return gnu_libc_version && map->l_addr == list->r_ldbase ? NULL : map->l_next;
}

/* A cache of start addresses of objects, each with its pin_state in the lowest bit. A state never changes: the pinned part of the list
   does not, and nothing else is ever loaded where a pinned object is. The first page of these objects is readable. */
static _Atomic uintptr_t pin_states[512];

enum pin_state { PINNED, UNPINNED, UNREADABLE };

static bool is_in_pinned_part(const struct link_map *map)
{
	struct object program;
	const struct r_debug *list = describe_main_program(&program) ? find_loader_list(&program) : NULL;

	for (const struct link_map *at = list ? list->r_map : NULL; at; at = next_pinned_object(list, at))
		if (at == map)
			return true;
	return false;
}

static enum pin_state find_pin_state(const struct link_map *map, uintptr_t start)
{
	_Atomic uintptr_t *known = &pin_states[(start >> 12 ^ start >> 21) % 512];
	uintptr_t answer = atomic_load_explicit(known, memory_order_relaxed);

	if ((answer & ~(uintptr_t)UNPINNED) != start) {
		if (!is_readable(start))
			return UNREADABLE;
		answer = start | (is_in_pinned_part(map) ? PINNED : UNPINNED);
		atomic_store_explicit(known, answer, memory_order_relaxed);
	}
	return answer & UNPINNED ? UNPINNED : PINNED;
}

static bool is_in(const struct object *object, uintptr_t pc) { return pc >= object->start && pc < object->end; }

static bool find_in_pinned_list(uintptr_t pc, struct object *object)
{
	const struct r_debug *list;
	const struct link_map *map;

	if (!describe_main_program(object))
		return false;
	if (is_in(object, pc))
		return true;
	list = find_loader_list(object);
	for (map = list ? list->r_map : NULL; map; map = next_pinned_object(list, map))
		if (map->l_addr && describe_object_at(object, map->l_addr, UINTPTR_MAX, map->l_addr) && is_in(object, pc))
			return true;
	return false;
}

/* An object that is not pinned is not unloaded during the walk, because it has a frame on this stack. Only a corrupt stack can name an
   object that another thread is just unloading. An object without a predecessor is the program, or the first one of another namespace. */
static bool find_object(uintptr_t pc, struct object *object)
{
	struct loaded_object found;
	enum pin_state pin_state;

	if (!find_loaded_object || find_loaded_object((void *)pc, &found) != 0)
		return find_in_pinned_list(pc, object);
	if (!found.map->l_prev && describe_main_program(object) && is_in(object, pc))
		return true;
	pin_state = find_pin_state(found.map, (uintptr_t)found.start);
	if (pin_state == UNREADABLE || !describe_object_at(object, (uintptr_t)found.start, (uintptr_t)found.end, found.map->l_addr))
		return false;
	object->identity = pin_state == PINNED ? 0 : identity_of(object);
	return true;
}

#endif
