// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* What the program headers of one loaded object tell: its segments, its build-id, its bounds. */
#ifndef SFRAMEGEN_OBJECT_HEADERS_H
#define SFRAMEGEN_OBJECT_HEADERS_H

#include "sections.h"
#include <elf.h>
#include <link.h>

#ifndef PT_GNU_SFRAME
#define PT_GNU_SFRAME 0x6474e554
#endif

/* A loaded program or library, as one walk sees it. `identity` goes into the cache's keys: 0 for what is pinned (it is never unloaded),
   a hash of the build-id and the place for other objects, NOT_CACHED for others without a build-id. Its section is opened only for rules
   that the cache does not have. */
struct object {
	uintptr_t start, end, bias;
	uint64_t identity;
	const ElfW(Phdr) *headers;
	unsigned header_count;
	enum { NOT_OPENED, NO_SECTION, HAS_SECTION, BAD_SECTION } has;
	struct section section;
};

enum { NOT_CACHED = 1 };

/* Returns the last header of a type; NULL if there is none. */
static const ElfW(Phdr) *find_header(const struct object *object, uint32_t type)
{
	for (unsigned number = object->header_count; number-- > 0;)
		if (object->headers[number].p_type == type)
			return &object->headers[number];
	return NULL;
}

/* Returns the bytes if they are in the part of a readable segment that comes from the file, else NULL. */
static const uint8_t *segment_bytes(const struct object *object, const ElfW(Phdr) *part)
{
	for (unsigned number = 0; number < object->header_count; number++) {
		const ElfW(Phdr) *load = &object->headers[number];
		uint64_t offset = part->p_vaddr - load->p_vaddr;

		if (load->p_type == PT_LOAD && (load->p_flags & PF_R) && offset <= load->p_filesz && part->p_memsz <= load->p_filesz - offset)
			return (const uint8_t *)(object->bias + part->p_vaddr);
	}
	return NULL;
}

static bool is_code(const struct object *object, uintptr_t pc)
{
	for (unsigned number = 0; number < object->header_count; number++) {
		const ElfW(Phdr) *load = &object->headers[number];

		if (load->p_type == PT_LOAD && (load->p_flags & (PF_R | PF_X)) == (PF_R | PF_X) && pc - (object->bias + load->p_vaddr) < load->p_memsz)
			return true;
	}
	return false;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
	return hash ^ hash >> 29;
}

/* Returns the build-id's bytes and their number; 0 if there is none. */
static size_t find_build_id(const struct object *object, const uint8_t **id)
{
	for (unsigned number = 0; number < object->header_count; number++) {
		const uint8_t *note = object->headers[number].p_type == PT_NOTE ? segment_bytes(object, &object->headers[number]) : NULL;
		size_t left = note ? object->headers[number].p_memsz : 0;

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

/* Equal build-ids at equal places are equal bytes, and equal rules, whatever was unloaded and loaded in between. */
static uint64_t identity_of(const struct object *object)
{
	const uint8_t *id;
	size_t size = find_build_id(object, &id);
	uint64_t hash = mix(object->bias, size), word;

	if (size < 8)
		return NOT_CACHED;
	for (size_t at = 0; at + 8 <= size; at += 8)
		hash = mix(hash, load64(id + at));
	memcpy(&word, id + size - 8, 8);
	return mix(hash, word) | 1ull << 63; /* no address has this bit */
}

/* Sets everything but the identity and the section. Returns false if the headers describe no such object. */
static bool describe(struct object *object, const ElfW(Phdr) *headers, unsigned count, uintptr_t bias)
{
	*object = (struct object){ .start = UINTPTR_MAX, .bias = bias, .headers = headers, .header_count = count };
	for (const ElfW(Phdr) *header = headers; header < headers + count; header++) {
		if (header->p_type != PT_LOAD)
			continue;
		if (bias + header->p_vaddr < object->start)
			object->start = bias + header->p_vaddr;
		if (bias + header->p_vaddr + header->p_memsz > object->end)
			object->end = bias + header->p_vaddr + header->p_memsz;
	}
	return object->start < object->end;
}

#endif
