// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/* Reads the detached sections of objects that have no section, for sframe_backtrace_prepare(), which is not safe in signal handlers.
   docs/detached.md has the rules on which files are trusted. A file is copied, not mapped, so that truncating it later does no harm. */
#ifndef SFRAMEGEN_DETACHED_SECTIONS_H
#define SFRAMEGEN_DETACHED_SECTIONS_H

#include "loaded_objects.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A hash table of sections that were read, by the identity of their objects. An entry's section is written before its identity, and never
   changes. */
enum { MAX_DETACHED = 1024 };

static struct { _Atomic uint64_t identity; struct section section; } detached[MAX_DETACHED];
static atomic_bool has_detached;

static bool find_detached(struct object *object)
{
	uint64_t identity, known;

	if (!atomic_load_explicit(&has_detached, memory_order_acquire))
		return false;
	identity = identity_of(object);
	for (unsigned number = 0; number < MAX_DETACHED; number++) {
		unsigned at = (unsigned)(identity + number) % MAX_DETACHED;

		known = atomic_load_explicit(&detached[at].identity, memory_order_acquire);
		if (known == identity && identity != NOT_CACHED)
			object->section = detached[at].section;
		if (known == identity || known == 0)
			return known == identity && identity != NOT_CACHED;
	}
	return false;
}

enum { MAX_FILE_BYTES = 1 << 30, SECTION_TYPE = 0x6ffffff4 };

/* Older C libraries do not export fstat; on these machines, the kernel fills the same structure. */
static bool read_status(int opened, struct stat *status) { return system_call(SYS_fstat, opened, (uintptr_t)status, 0, 0) == 0; }

/* Opens DIRECTORY/.build-id/xx/yyyy.sframe, without following symbolic links below the directory. Returns -1 if it cannot be opened or
   trusted. */
static int open_store_file(const char *directory, const uint8_t *id, size_t size, struct stat *file)
{
	static const char digits[] = "0123456789abcdef";
	static const int flags[] = { O_PATH | O_DIRECTORY, O_PATH | O_DIRECTORY | O_NOFOLLOW, O_PATH | O_DIRECTORY | O_NOFOLLOW,
		O_RDONLY | O_NONBLOCK | O_NOFOLLOW };
	char folder_name[3] = { digits[id[0] >> 4], digits[id[0] & 15], 0 }, file_name[2 * 64 + sizeof ".sframe"];
	const char *names[] = { directory, ".build-id", folder_name, file_name };
	struct stat of_directory;
	int opened = AT_FDCWD;

	for (size_t at = 1; at < size; at++) {
		file_name[2 * at - 2] = digits[id[at] >> 4];
		file_name[2 * at - 1] = digits[id[at] & 15];
	}
	memcpy(file_name + 2 * size - 2, ".sframe", sizeof ".sframe");
	for (int at = 0; at < 4; at++) {
		int next = openat(opened, names[at], flags[at] | O_CLOEXEC);

		if (opened != AT_FDCWD)
			close(opened);
		if (next < 0)
			return -1;
		opened = next;
		if (at == 0 && !read_status(opened, &of_directory))
			break;
		if (at < 3)
			continue;
		if (read_status(opened, file) && S_ISREG(file->st_mode) && file->st_size > 0 && file->st_size < MAX_FILE_BYTES &&
		    (file->st_uid == 0 || file->st_uid == geteuid() || file->st_uid == of_directory.st_uid) && !(file->st_mode & S_IWOTH) &&
		    !(geteuid() == 0 && (file->st_mode & S_IWGRP) && file->st_gid != 0))
			return opened;
	}
	close(opened);
	return -1;
}

/* Returns true if the PT_LOADs are the same. */
static bool has_same_layout(const struct object *object, const ElfW(Phdr) *headers, unsigned count)
{
	const ElfW(Phdr) *other = NULL;

	EACH_HEADER(load, PT_LOAD, object) {
		other = next_header(headers, count, PT_LOAD, other);
		if (!other || other->p_flags != load->p_flags || other->p_offset != load->p_offset || other->p_vaddr != load->p_vaddr ||
		    other->p_filesz != load->p_filesz || other->p_memsz != load->p_memsz)
			return false;
	}
	return next_header(headers, count, PT_LOAD, other) == NULL;
}

/* Finds the section in the bytes of a file. Returns false if the file is not for this object: its build-id or load layout differs. The note
   of a build-id is the size of its name, 4 ("GNU"), the size of the id, the type, the name, and the id. */
static bool find_section_in_file(const uint8_t *bytes, size_t size, const struct object *object, const uint8_t *id, size_t id_size,
				 struct section *found)
{
	const ElfW(Ehdr) *file = (const ElfW(Ehdr) *)(const void *)bytes;
	bool is_for_object = false, has_section = false;

	if (size < sizeof *file || memcmp(file->e_ident, ELFMAG, SELFMAG) != 0 || file->e_phoff > size || file->e_shoff > size ||
	    file->e_phoff % 8 || file->e_shoff % 8 || file->e_phnum > (size - file->e_phoff) / sizeof(ElfW(Phdr)) ||
	    file->e_shnum > (size - file->e_shoff) / sizeof(ElfW(Shdr)) ||
	    !has_same_layout(object, (const ElfW(Phdr) *)(const void *)(bytes + file->e_phoff), file->e_phnum))
		return false;
	for (unsigned number = 0; number < file->e_shnum; number++) {
		const ElfW(Shdr) *part = (const ElfW(Shdr) *)(const void *)(bytes + file->e_shoff) + number;
		const uint8_t *start;

		if (part->sh_offset > size || part->sh_size > size - part->sh_offset)
			continue;
		start = bytes + part->sh_offset;
		if (part->sh_type == SHT_NOTE && part->sh_size >= 16 + id_size && load32(start) == 4 && load32(start + 4) == id_size)
			is_for_object |= load32(start + 8) == NT_GNU_BUILD_ID && memcmp(start + 16, id, id_size) == 0;
		if (part->sh_type == SECTION_TYPE && !(part->sh_flags & SHF_COMPRESSED))
			has_section = open_section(start, part->sh_size, object->bias + part->sh_addr, found);
	}
	return is_for_object && has_section;
}

static bool read_store_section(const char *directory, const struct object *object, struct section *found)
{
	const uint8_t *id;
	size_t size = find_build_id(object, &id), done = 0;
	struct stat file;
	int opened = size > 1 && size <= 64 ? open_store_file(directory, id, size, &file) : -1;
	uint8_t *bytes;
	ssize_t count = 1;

	if (opened < 0)
		return false;
	bytes = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	while (bytes != MAP_FAILED && count > 0 && done < (size_t)file.st_size) {
		count = read(opened, bytes + done, (size_t)file.st_size - done);
		done += count > 0 ? (size_t)count : 0;
	}
	close(opened);
	if (bytes == MAP_FAILED)
		return false;
	mprotect(bytes, (size_t)file.st_size, PROT_READ);
	if (find_section_in_file(bytes, done, object, id, size, found))
		return true;
	munmap(bytes, (size_t)file.st_size);
	return false;
}

static bool add_detached(uint64_t identity, const struct section *section)
{
	for (unsigned number = 0; number < MAX_DETACHED; number++) {
		unsigned at = (unsigned)(identity + number) % MAX_DETACHED;
		uint64_t none = 0;

		if (!atomic_compare_exchange_strong(&detached[at].identity, &none, NOT_CACHED))
			continue;
		detached[at].section = *section;
		atomic_store_explicit(&detached[at].identity, identity, memory_order_release);
		atomic_store_explicit(&has_detached, true, memory_order_release);
		return true;
	}
	return false;
}

static int prepare_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	const char *path = getenv("SFRAMEGEN_PATH");
	int *added = argument;
	struct object object;
	struct section section;

	(void)size;
	if (!describe_object(&object, info->dlpi_phdr, info->dlpi_phnum, info->dlpi_addr))
		return 0;
	if (find_header(&object, PT_GNU_SFRAME) || find_detached(&object) || identity_of(&object) == NOT_CACHED)
		return 0;
	while (path && *path) {
		size_t length = strcspn(path, ":");
		char directory[PATH_MAX];

		if (length > 0 && length < sizeof directory) {
			memcpy(directory, path, length);
			directory[length] = 0;
			if (read_store_section(directory, &object, &section)) {
				*added += add_detached(identity_of(&object), &section);
				return 0;
			}
		}
		path += length + (path[length] == ':');
	}
	return 0;
}

#endif
