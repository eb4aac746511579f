/* Two libraries of equal layout: BYTES of frame differ, which takes the same instructions. */
int through(int (*call)(void)) {
	volatile char block[BYTES];
	block[0] = 1;
	return call() + block[0];
}
