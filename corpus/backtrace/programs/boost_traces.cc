// Takes a stack trace with Boost at the bottom of a recursion, as often as the argument says, and prints the last one.
#include <boost/stacktrace.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

static volatile int rounds;

static void print(const void *address)
{
	Dl_info place;

	if (dladdr(address, &place))
		std::printf("%s+%lx\n", std::strrchr(place.dli_fname, '/') + 1, static_cast<const char *>(address) - static_cast<const char *>(place.dli_fbase));
}

__attribute__((noinline)) static void descend(int depth)
{
	if (depth > 0) {
		descend(depth - 1);
		__asm__ volatile("");
		return;
	}
	for (int round = rounds; round > 0; round--) {
		boost::stacktrace::stacktrace trace;

		for (size_t at = 0; round == 1 && at < trace.size(); at++)
			print(trace[at].address());
	}
}

int main(int, char **words)
{
	rounds = std::atoi(words[1]);
	descend(30);
}
