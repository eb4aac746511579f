/* The attacker: exchanges the names A and B until it is killed, after pauses of every length, shorter ones while they are exchanged:
   a file that is a link at once is refused at once. Says first that it has begun. */

#define _GNU_SOURCE
#include <stdio.h>
#include <unistd.h>
#include <fcntl.h>

enum { LONGEST = 1 << 26 };

int main(int count, char **names) {
  unsigned random = 1, exchanged = 1;
  if (count != 3) return 2;
  if (renameat2(AT_FDCWD, names[1], AT_FDCWD, names[2], RENAME_EXCHANGE)) return perror("renameat2"), 1;
  if (write(1, "\n", 1) != 1) return 1;
  for (;;) {
    random = random * 1103515245 + 12345;
    for (volatile unsigned pause = (LONGEST >> (random >> 16) % 27) >> 6 * exchanged; pause; pause--) {}
    renameat2(AT_FDCWD, names[1], AT_FDCWD, names[2], RENAME_EXCHANGE);
    exchanged = !exchanged;
  }
}
