// Handlers on the stack that they interrupt and on another one, of signals from a timer and of its own making, one within the other.
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

static volatile unsigned spun;

static void spin(unsigned times) {
    for (unsigned i = 0; i < times; i++) spun += i;
}

__attribute__((noinline)) static unsigned leaf(unsigned a) { return a * 3 + spun; }

__attribute__((noinline)) static unsigned interrupted(unsigned a, unsigned depth) {
    volatile unsigned room[8] = {a};
    return depth ? interrupted(leaf(a), depth - 1) + room[depth & 7] : leaf(room[0]);
}

static void inner(int number) { spin(40000 * (unsigned)number); }

static void outer(int number) {
    spin(1000000);
    if (spun % 3 == 0) raise(SIGUSR1);
    spun += interrupted((unsigned)number, 3);
}

int main(void) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, 0);
    sigaction(SIGVTALRM, &(struct sigaction){.sa_handler = outer, .sa_flags = SA_ONSTACK}, 0);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = inner}, 0);
    sigaction(SIGUSR2, &(struct sigaction){.sa_handler = outer}, 0);
    setitimer(ITIMER_VIRTUAL, &(struct itimerval){{0, 5000}, {0, 5000}}, 0);
    for (unsigned i = 0;; i++) {
        spun += interrupted(i, i % 20);
        if (i % 16384 == 0) raise(SIGUSR2);
    }
}
