/* Compiled twice: functions of two names, with frames of two sizes, at the same addresses. */
#define PASTE(a, b) a##b
#define NAMED(a, b) PASTE(a, b)
#define KEPT __attribute__((noinline))
static volatile unsigned long done;
KEPT void NAMED(NAME, _inner)(int n) { volatile char room[ROOM]; for (int i = 0; i < 200; i++) room[(i + n) % ROOM] = 1; done += room[0]; }
KEPT void NAMED(NAME, _outer)(int n) { volatile char room[2 * ROOM]; room[n % ROOM] = 1; NAMED(NAME, _inner)(n); done += room[1]; }
void enter(int n) { NAMED(NAME, _outer)(n); done++; }
