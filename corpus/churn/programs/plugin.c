/* A library that is loaded and unloaded in a loop. NUMBER: names its functions, and gives each library another layout of code and stack. */
#include <alloca.h>

#define JOINED(a, b, c) a##b##c
#define NAMED(a, number, c) JOINED(a, number, c)
#define OWN(name) NAMED(p, NUMBER, _##name)
#define TEXT_OF(a) #a
#define TEXT(a) TEXT_OF(a)
#define APART __attribute__((noinline, noclone))

typedef void work_function(int rounds);

static volatile char keep;
void OWN(enter)(work_function *work, int rounds);

/* Code that only moves the functions after it */
__asm__(".pushsection .text\n.skip 64 * " TEXT(NUMBER) " + 16, 0x90\n.popsection");

APART static void OWN(inner)(work_function *work, int rounds)
{
	volatile char room[8 + 48 * NUMBER];

	for (int round = 0; round < rounds; round++)
		room[round % sizeof(room)] = (char)round;
	work(rounds);
	keep = room[0];
}

APART static void OWN(middle)(work_function *work, int rounds)
{
	volatile char *room = alloca(16 + (rounds & 15) * 16 * NUMBER);

	room[0] = 1;
	OWN(inner)(work, rounds);
	keep = room[0];
}

__attribute__((constructor)) APART static void OWN(begin)(void)
{
	for (int round = 0; round < 2000; round++)
		keep += (char)round;
}

void OWN(enter)(work_function *work, int rounds)
{
	volatile long saved = NUMBER;

	OWN(middle)(work, rounds);
	keep += (char)saved;
}
