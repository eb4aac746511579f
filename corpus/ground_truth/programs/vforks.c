/* Children that work on their parent's stack while it waits in vfork; some execute another program, which ends at once. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define KEPT __attribute__((noinline))
static volatile unsigned long done;

KEPT void leaf(int turns) { for (volatile int i = 0; i < turns; i++) done++; }
KEPT void deep(int depth) { if (depth) deep(depth - 1); else leaf(20000); done++; }
KEPT void in_child(int n) { deep(n % 9); if (n % 16 == 0) execl("/bin/true", "true", (char *)0); done++; }
KEPT void spawns(int n)
{
	pid_t child = vfork();
	if (child == 0) { in_child(n); _exit(0); }
	waitpid(child, 0, 0);
	done++;
}
KEPT void in_parent(void) { leaf(20000); done++; }

int main(int count, char **words)
{
	double seconds = count > 1 ? atof(words[1]) : 1;
	struct timespec now, begin;

	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (int n = 0;; n++) {
		spawns(n);
		in_parent();
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - begin.tv_sec + 1e-9 * (now.tv_nsec - begin.tv_nsec) > seconds) return 0;
	}
}
