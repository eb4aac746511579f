/* What restless.c starts: it works for a moment. */
#define APART __attribute__((noinline, noclone))

static volatile unsigned sum;

APART static void executed_inner(int rounds)
{
	volatile char room[200];

	for (int round = 0; round < rounds; round++) {
		room[round % sizeof(room)] = (char)round;
		sum += room[0];
	}
}

APART static void executed_outer(int rounds)
{
	volatile char room[72];

	room[0] = 1;
	executed_inner(rounds);
	sum += room[0];
}

int main(void)
{
	executed_outer(300000);
	sum++;
	return 0;
}
