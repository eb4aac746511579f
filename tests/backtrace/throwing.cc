// Throws exceptions while traces are taken: through frames, out of a callback, in threads. Prints the number that were caught.
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>
#include <atomic>
#include <execinfo.h>
#include <unwind.h>

static std::atomic<int> caught;

static _Unwind_Reason_Code throwing(struct _Unwind_Context *context, void *argument) {
	if (++*static_cast<int *>(argument) == 3)
		throw std::runtime_error("out of a callback");
	return _Unwind_GetIP(context) ? _URC_NO_REASON : _URC_END_OF_STACK;
}

__attribute__((noinline)) static void descend(int depth) {
	void *buffer[200];
	std::vector<int> destroyed(10);
	if (depth == 0)
		throw std::runtime_error("at the bottom");
	if (backtrace(buffer, 200) < 4)
		std::printf("too short\n");
	descend(depth - 1);
	destroyed[0] = depth;
}

static void work() {
	for (int round = 0; round < 50; round++) {
		int frames = 0;
		try {
			descend(round % 20);
		} catch (const std::exception &) {
			caught++;
		}
		try {
			_Unwind_Backtrace(throwing, &frames);
		} catch (const std::exception &) {
			caught++;
		}
	}
}

int main() {
	std::vector<std::thread> threads;
	for (int number = 0; number < 4; number++)
		threads.emplace_back(work);
	work();
	for (auto &thread : threads)
		thread.join();
	std::printf("%d caught\n", caught.load());
}
