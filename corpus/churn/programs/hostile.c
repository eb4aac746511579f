/* hostile SECONDS KIND: runs code that is in no file, under a name and with a /tmp/perf-PID.map that are meant to harm who profiles it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void many(const char *path, const char *code)
{
	FILE *map = fopen(path, "w");

	for (int line = 0; line < 3000000 && map; line++)
		fprintf(map, "%lx 10 name%d\n", (unsigned long)code + line % 4096 * 16, line);
	if (map)
		fclose(map);
}

int main(int count, char **arguments)
{
	/* a loop: mov $0x100000,%ecx; dec %ecx; jnz; ret */
	static const unsigned char loop[] = {0xb9, 0, 0, 0x10, 0, 0xff, 0xc9, 0x75, 0xfc, 0xc3};
	char *code = mmap(NULL, 65536, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), path[64];
	struct timespec now;
	double end;
	FILE *map;

	(void)count;
	memcpy(code, loop, sizeof(loop));
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	prctl(PR_SET_NAME, "\033[2J\nlost: 9\r");
	if (!strcmp(arguments[2], "fifo"))
		mkfifo(path, 0644);
	else if (!strcmp(arguments[2], "shadow"))
		if (symlink("/etc/shadow", path))
			return 1;
	if (!strcmp(arguments[2], "many"))
		many(path, code);
	if (!strcmp(arguments[2], "names") && (map = fopen(path, "w"))) {
		fprintf(map, "%lx 10000 \033]0;title\007\r", (unsigned long)code);
		for (int byte = 0; byte < 4000000; byte++)
			fputc("\033A\302\205\377"[byte % 5], map);
		fputc('\n', map);
		fclose(map);
	}
	clock_gettime(CLOCK_MONOTONIC, &now);
	end = now.tv_sec + atof(arguments[1]);
	do {
		((void (*)(void))code)();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < end);
	return 0;
}
