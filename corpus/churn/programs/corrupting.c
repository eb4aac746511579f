/* corrupting SECONDS KIND FOLDER: damages what a profiler reads of it, again and again, and is sampled meanwhile. */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define APART __attribute__((noinline, noclone))

static volatile unsigned sum;
static double end;
static const char *folder;
static uintptr_t guard;

static int is_over(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9 >= end;
}

APART static void spin(int rounds)
{
	for (int round = 0; round < rounds; round++)
		sum += round;
}

/* What a hostile word may be: the kernel's, not canonical, misaligned, one's own stack, a page that cannot be read, code */
static uintptr_t hostile(unsigned turn, uintptr_t here)
{
	switch (turn % 12) {
	case 0: return 0;
	case 1: return 0xffffffff81000000;
	case 2: return 0xffff888000000000;
	case 3: return 0x8000000000000000;
	case 4: return 0x7ffffffff000;
	case 5: return here;
	case 6: return here + 1;
	case 7: return here - 64;
	case 8: return guard;
	case 9: return (uintptr_t)spin + 8;
	case 10: return ~0ul;
	default: return here ^ ((uintptr_t)random() << 3);
	}
}

/* The frames of the callers are overwritten while it spins, and restored. */
APART static void damage_stack(unsigned turn)
{
	volatile uintptr_t *sp = __builtin_frame_address(0);
	uintptr_t kept[24];

	for (int word = 0; word < 24; word++)
		kept[word] = sp[word];
	for (int word = 0; word < 24; word++)
		if (turn & 64 || word == (int)(turn / 12 % 24))
			sp[word] = hostile(turn + word, (uintptr_t)&sp[word]);
	spin(30000);
	for (int word = 0; word < 24; word++)
		sp[word] = kept[word];
}

APART static void between(unsigned turn)
{
	volatile char room[256];

	room[0] = (char)turn;
	damage_stack(turn);
	sum += room[0];
}

APART static void do_stack(void)
{
	for (unsigned turn = 0; !is_over(); turn++)
		between(turn);
}

/* A chain of frame pointers that has a loop, or is endless; SP at hostile places */
APART static void do_registers(void)
{
	static uintptr_t loop[4096];

	for (int word = 0; word < 4096; word += 2) {
		loop[word] = (uintptr_t)&loop[(word + 2) % 4096];
		loop[word + 1] = (uintptr_t)spin + 8;
	}
	for (unsigned turn = 0; !is_over(); turn++) {
		uintptr_t to = turn & 1 ? (uintptr_t)loop : hostile(turn, (uintptr_t)loop);

		__asm__ volatile("push %%rbp\n mov %%rsp, %%r12\n mov %0, %%rbp\n test $2, %1\n jz 1f\n mov %0, %%rsp\n"
				 "1: mov $200000, %%ecx\n 2: dec %%ecx\n jnz 2b\n mov %%r12, %%rsp\n pop %%rbp\n"
				 : : "r"(to), "r"(turn) : "rcx", "r12", "cc", "memory");
	}
}

APART static void deep(unsigned long depth)
{
	volatile char room[4000];

	room[0] = (char)depth;
	if (depth)
		deep(depth - 1);
	else
		while (!is_over())
			spin(100000);
	sum += room[0];
}

/* 4 GB of stack, which has a million frames */
static void do_deep(void)
{
	size_t size = 4ul << 30;

	char *big = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (big == MAP_FAILED)
		abort();
	__asm__ volatile("mov %%rsp, %%r12\n mov %0, %%rsp\n call *%1\n mov %%r12, %%rsp\n"
			 : : "r"(big + size - 64), "r"(deep), "D"(200000ul)
			 : "r12", "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
}

/* Its own section and headers in memory */
static int damage_object(struct dl_phdr_info *info, size_t size, void *argument)
{
	const ElfW(Phdr) *found = NULL;

	(void)size;
	(void)argument;
	for (int number = 0; number < info->dlpi_phnum; number++) {
		const ElfW(Phdr) *header = &info->dlpi_phdr[number];

		if (header->p_type == PT_GNU_EH_FRAME || header->p_type == 0x6474e554)
			found = header;
		if (found == header) {
			uintptr_t start = (info->dlpi_addr + header->p_vaddr) & ~4095ul;
			uintptr_t last = info->dlpi_addr + header->p_vaddr + header->p_memsz;

			if (!mprotect((void *)start, last - start, PROT_READ | PROT_WRITE))
				for (uintptr_t at = info->dlpi_addr + header->p_vaddr; at < last; at++)
					*(volatile char *)at = (char)random();
		}
	}
	if (info->dlpi_addr && !info->dlpi_name[0]) {
		uintptr_t start = info->dlpi_addr;

		if (!mprotect((void *)start, 4096, PROT_READ | PROT_WRITE))
			for (int at = 0; at < 64; at++)
				((volatile char *)start)[at] = (char)random();
	}
	return info->dlpi_name[0] != 0;
}

APART static void do_sections(void)
{
	while (!is_over()) {
		dl_iterate_phdr(damage_object, NULL);
		spin(2000000);
	}
}

/* Executable mappings of files that are no ELF files, lie, change, or shrink while they are mapped */
APART static void map_file(const char *name, int flags, size_t length)
{
	char path[4096];
	int file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = open(path, flags | O_NONBLOCK);
	if (file < 0)
		return;
	mmap(NULL, length, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
	close(file);
}

APART static void do_files(void)
{
	char path[4096];
	FILE *self = fopen("/proc/self/exe", "rb");
	static char bytes[1 << 16];
	size_t size = fread(bytes, 1, sizeof(bytes), self);

	fclose(self);
	for (unsigned turn = 0; !is_over(); turn++) {
		int file;

		snprintf(path, sizeof(path), "%s/changing-%u", folder, turn % 50);
		file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0755);
		if (write(file, bytes, size) < 0)
			abort();
		if (turn & 1) /* it lies */
			for (int number = 0; number < 40; number++) {
				char byte = (char)random();

				if (pwrite(file, &byte, 1, random() % (number < 20 ? 512 : (long)size)) < 0)
					abort();
			}
		mmap(NULL, size, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
		if (turn & 2) { /* a hole of 1 TB */
			if (ftruncate(file, 1l << 40))
				sum++;
		} else if (turn & 4) {
			usleep(random() % 30000);
			if (ftruncate(file, random() % 8192))
				sum++;
		}
		close(file);
		if (turn & 8) {
			unlink(path);
			if (mkfifo(path, 0644))
				sum++;
			unlink(path);
		}
		spin(300000);
		if (turn % 100 == 99)
			map_file("/dev/zero", O_RDONLY, 4096);
	}
}

int main(int count, char **arguments)
{
	struct timespec now;

	(void)count;
	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec + now.tv_nsec * 1e-9 + atof(arguments[1]);
	folder = arguments[3];
	guard = (uintptr_t)mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 2048;
	if (!strcmp(arguments[2], "stack"))
		do_stack();
	else if (!strcmp(arguments[2], "registers"))
		do_registers();
	else if (!strcmp(arguments[2], "deep"))
		do_deep();
	else if (!strcmp(arguments[2], "sections"))
		do_sections();
	else if (!strcmp(arguments[2], "files"))
		do_files();
	return 0;
}
