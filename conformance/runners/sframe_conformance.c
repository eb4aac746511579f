// SPDX-License-Identifier: Apache-2.0
/* Tries `sframe_reader` on all cases, each in a process of its own; prints TAP. Exit status 1: a case is not ok; 2: no such case.
   cc -std=c11 -o try sframe_conformance.c sframe_cases.c my_reader.c && ./try [CASE...] */
#define _DEFAULT_SOURCE
#include "sframe_conformance.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* As exit statuses they are none that a reader, or a sanitizer in it, would end the process with. */
enum { OK = 240, NOT_OK, SKIPPED, SECONDS = 10 };

static bool same_place(const struct sframe_place *one, const struct sframe_place *other)
{
	return one->base == other->base && (one->base == SFRAME_KEPT || (one->offset == other->offset && one->deref == other->deref));
}

static bool same(const struct sframe_rule *given, const struct sframe_rule *expected)
{
	unsigned reports = sframe_reader.reports;

	if (given->kind != expected->kind || given->kind != SFRAME_RULE)
		return given->kind == expected->kind;
	if ((reports & SFRAME_REPORTS_SIGNED && given->ra_signed != expected->ra_signed) ||
	    (reports & SFRAME_REPORTS_SIGNAL && given->signal != expected->signal) ||
	    (reports & SFRAME_REPORTS_KEY && given->key_b != expected->key_b))
		return false;
	return same_place(&given->cfa, &expected->cfa) && same_place(&given->ra, &expected->ra) && same_place(&given->fp, &expected->fp);
}

static void show_place(const char *name, const struct sframe_place *place)
{
	printf(" %s = ", name);
	if (place->base == SFRAME_KEPT) {
		printf("kept");
		return;
	}
	printf("%s", place->deref ? "*(" : "");
	if (place->base == SFRAME_CFA)
		printf("cfa");
	else
		printf("r%" PRId32, place->base);
	printf("%+" PRId64 "%s", place->offset, place->deref ? ")" : "");
}

static void show(const struct sframe_rule *rule)
{
	static const char *const kinds[] = { " none", "", " outermost", " unsupported" };

	printf("%s", kinds[rule->kind]);
	if (rule->kind != SFRAME_RULE)
		return;
	show_place("cfa", &rule->cfa);
	show_place("ra", &rule->ra);
	show_place("fp", &rule->fp);
	printf("%s%s%s", rule->ra_signed ? " signed" : "", rule->signal ? " signal" : "", rule->key_b ? " key B" : "");
}

static int probe(void *state, const struct sframe_probe *probe)
{
	struct sframe_rule given = { .kind = SFRAME_NONE };

	sframe_reader.find(state, probe->pc, &given);
	if (given.kind == SFRAME_UNSUPPORTED)
		return SKIPPED;
	for (unsigned number = 0; number < probe->count; number++)
		if (same(&given, &probe->answers[number]))
			return OK;
	if (!probe->count)
		return OK;
	printf("# %#" PRIx64 ":", probe->pc);
	show(&given);
	printf("; expected");
	for (unsigned number = 0; number < probe->count; number++) {
		printf("%s", number ? ", or" : "");
		show(&probe->answers[number]);
	}
	printf("\n");
	return NOT_OK;
}

/* A copy that ends where a page begins that cannot be read. */
static uint8_t *guarded(const uint8_t *section, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size + page - 1) / page * page;
	uint8_t *memory = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED || mprotect(memory + room, page, PROT_NONE))
		_exit(NOT_OK);
	return memcpy(memory + room - size, section, size);
}

static int try_case(const struct sframe_case *one)
{
	bool is_known = sframe_reader.versions >> one->version & 1;
	uint8_t *section = guarded(one->section, one->size);
	void *state = section;
	int result = OK;

	if (!sframe_reader.open(one, section, one->size, &state)) {
		if (is_known && one->verdict == SFRAME_VALID) {
			printf("# refuses the section\n");
			return NOT_OK;
		}
		return is_known ? OK : SKIPPED;
	}
	if (!is_known) {
		printf("# reads version %u, which it does not know\n", one->version);
		return NOT_OK;
	}
	for (unsigned number = 0; number < one->count && result != SKIPPED; number++) {
		int here = probe(state, &one->probes[number]);

		result = here == OK ? result : here;
	}
	if (sframe_reader.close)
		sframe_reader.close(state);
	return result;
}

/* What the child prints goes to the file `notes`, to follow the verdict; the parent's buffer is empty when it forks. */
static int try_alone(const struct sframe_case *one, int notes)
{
	int status;
	pid_t child;

	fflush(stdout);
	child = fork();
	if (child == 0) {
		int result;

		alarm(SECONDS);
		dup2(notes, STDOUT_FILENO);
		result = try_case(one);
		fflush(stdout);
		_exit(result);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return NOT_OK;
	if (WIFSIGNALED(status)) {
		dprintf(notes, "# signal %d: %s\n", WTERMSIG(status),
			WTERMSIG(status) == SIGALRM ? "it does not end" : "it crashes or reads outside");
		return NOT_OK;
	}
	if (WEXITSTATUS(status) < OK || WEXITSTATUS(status) > SKIPPED) {
		dprintf(notes, "# exit status %d: it ends the process\n", WEXITSTATUS(status));
		return NOT_OK;
	}
	return WEXITSTATUS(status);
}

/* Prints the notes, and empties their file. */
static void show_notes(int notes)
{
	char text[4096];
	ssize_t size;

	lseek(notes, 0, SEEK_SET);
	while ((size = read(notes, text, sizeof text)) > 0)
		fwrite(text, 1, (size_t)size, stdout);
	if (lseek(notes, 0, SEEK_SET) || ftruncate(notes, 0))
		perror("notes");
}

static bool is_wanted(const struct sframe_case *one, char **names)
{
	bool any = *names != NULL;

	for (; *names; names++)
		if (strcmp(*names, one->name) == 0)
			return true;
	return !any;
}

static bool is_case(const char *name)
{
	for (unsigned place = 0; place < sframe_case_count; place++)
		if (strcmp(name, sframe_cases[place].name) == 0)
			return true;
	fprintf(stderr, "no such case: %s\n", name);
	return false;
}

int main(int count, char **arguments)
{
	unsigned number = 0, failed = 0, skipped = 0, wanted = 0;
	FILE *file = tmpfile();
	int notes;

	for (int place = 1; place < count; place++)
		if (!is_case(arguments[place]))
			return 2;
	if (!file) {
		perror("tmpfile");
		return 2;
	}
	notes = fileno(file);
	for (unsigned place = 0; place < sframe_case_count; place++)
		wanted += is_wanted(&sframe_cases[place], arguments + 1);
	printf("TAP version 13\n1..%u\n", wanted);
	for (unsigned place = 0; place < sframe_case_count; place++) {
		const struct sframe_case *one = &sframe_cases[place];
		int result = SKIPPED;

		if (!is_wanted(one, arguments + 1))
			continue;
		if (sframe_reader.abis >> one->abi & 1)
			result = try_alone(one, notes);
		failed += result == NOT_OK;
		skipped += result == SKIPPED;
		printf("%sok %u - %s%s\n", result == NOT_OK ? "not " : "", ++number, one->name, result == SKIPPED ? " # SKIP" : "");
		if (result == NOT_OK)
			printf("# %s: %s\n", one->verdict == SFRAME_VALID ? "valid" : one->verdict == SFRAME_OPEN ? "open" : "invalid", one->why);
		show_notes(notes);
	}
	printf("# %u ok, %u not ok, %u skipped: %s\n", number - failed - skipped, failed, skipped, sframe_reader.name);
	return failed > 0;
}
