"""Programs that tests compile: frames of every kind that compilers make, and exceptions through libraries."""

from __future__ import annotations

# Functions that call nothing of a C library.
SHAPES = r"""
#define SHAPE __attribute__((noinline, noclone)) unsigned
typedef unsigned callback(unsigned);
__attribute__((weak)) unsigned *volatile sink;  // never set
SHAPE leaf(unsigned n) { return n * 3 + 1; }
SHAPE sibling(unsigned n, callback *call) { return call(n + 1); }
SHAPE recursive(unsigned n) { return n < 2 ? n : recursive(n - 1) + recursive(n - 2); }
SHAPE with_alloca(unsigned n) {
    volatile unsigned char *block = __builtin_alloca(n % 500 + 16);
    for (unsigned i = 0; i < n % 500 + 16; i++) block[i] = (unsigned char) i;
    return leaf(block[n % 500]) + recursive(n);
}
SHAPE with_vla(unsigned n, callback *call) {
    volatile unsigned array[n % 50 + 1];
    array[n % 50] = n;
    return call(array[n % 50]) + array[n % 50];
}
SHAPE realigned(unsigned n, callback *call) {
    volatile unsigned array[16] __attribute__((aligned(128)));
    array[n % 16] = n;
    return call(array[n % 16]) + (unsigned) ((unsigned long) array % 128);
}
SHAPE large(unsigned n, callback *call) {
    volatile char frame[40000];
    frame[n] = frame[39999 - n] = (char) n;
    return call(n) + frame[39999 - n];
}
SHAPE huge(unsigned n, callback *call) {
    volatile char frame[700000];
    frame[n] = frame[699999 - n] = (char) n;
    return call(n) + frame[699999 - n];
}
SHAPE variadic(unsigned n, ...) {
    __builtin_va_list list;
    __builtin_va_start(list, n);
    unsigned sum = 0;
    while (n--) sum = sum * 10 + __builtin_va_arg(list, unsigned);
    __builtin_va_end(list);
    return sum;
}
SHAPE many(unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f, unsigned g, unsigned h, unsigned i, unsigned j) {
    unsigned k = leaf(a), l = leaf(b), m = leaf(c), n = leaf(d), o = leaf(e), p = leaf(f), q = leaf(g), r = leaf(h);
    return k + 2 * l + 3 * m + 4 * n + 5 * o + 6 * p + 7 * q + 8 * r + 9 * leaf(i) + 10 * leaf(j) + a * b * c * d * e * f * g * h;
}
SHAPE floating(unsigned n, callback *call) {
#ifdef NO_FLOATING_POINT
    return call(n);
#else
    double a = n + .5, b = a * a, c = b * a, d = c * a;
    unsigned first = call(n);
    double e = a * first, f = b * first, g = c * first, h = d * first;
    unsigned second = call(first);
    return (unsigned) (a + b + c + d + e + f + g + h) + second;
#endif
}
SHAPE busy_leaf(unsigned n) {  // more live values than registers that a leaf may clobber
    unsigned a = n, b = n + 1, c = n + 2, d = n + 3, e = n + 4, f = n + 5, g = n + 6, h = n + 7, i = n + 8, j = n + 9;
    for (unsigned k = 0; k < n; k++) {
        a += b * j, b ^= c + a, c += d * b, d ^= e + c, e += f * d, f ^= g + e, g += h * f, h ^= i + g, i += j * h, j ^= a + i;
    }
    return a ^ b ^ c ^ d ^ e ^ f ^ g ^ h ^ i ^ j;
}
SHAPE clobbers(unsigned n) {
#ifdef __s390x__
    __asm__ volatile("lghi %%r14,1" ::: "r14");  // a leaf may keep it in a floating-point register
#endif
    return n;
}
SHAPE late_frame(unsigned n, callback *call) {
    if (n & 1) return n;
    volatile unsigned array[8];
    array[n % 8] = call(n);
    return call(array[n % 8]) + n;
}
__attribute__((noinline, noclone, noreturn, cold)) static void never(unsigned n) { for (;;) *sink = leaf(n); }
SHAPE may_not_return(unsigned n) {
    if (sink) never(n);
    return leaf(n) + 1;
}
static unsigned caught = 1;  // the one variable with a value in the file
static inline void count(unsigned *n) { caught += *n; }
SHAPE with_cleanup(unsigned n, callback *call) {
    __attribute__((cleanup(count))) unsigned local = n;
    return call(local);
}
SHAPE shapes(unsigned n) {
    unsigned sum = many(1, 2, 3, 4, 5, 6, 7, 8, 9, n) + variadic(3, 1, 2, n) + busy_leaf(n);
    sum = sum * 31 + with_alloca(n) + with_vla(n, leaf) + realigned(n, leaf) + large(n, leaf) + huge(n, leaf);
    sum = sum * 31 + floating(n, leaf) + late_frame(n, leaf) + may_not_return(n) + sibling(n, leaf) + clobbers(n);
    return sum * 31 + with_cleanup(n, with_alloca) + caught;
}
"""
HOSTED = (
    r"""
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
"""
    + SHAPES
    + r"""
static unsigned signalled;
static void handle(int number, siginfo_t *info, void *context) {
    signalled += with_alloca(info->si_signo == number && context ? 11 : 0);
}
static jmp_buf place;
__attribute__((noinline, noreturn)) static void jump(unsigned n) { longjmp(place, (int) leaf(n)); }
__attribute__((noinline)) static int lands(unsigned n) {
    int value = setjmp(place);
    if (!value) jump(n);
    return value;
}
int report(void) {
    static char stack[65536];
    stack_t other = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
    sigaltstack(&other, 0);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGUSR2, &action, 0);
    raise(SIGUSR2);
    printf("%u %u %d\n", shapes(7), signalled, lands(5));
    return fflush(stdout);
}
"""
)
PROGRAM = HOSTED + "int main(void) { exit(report()); }\n"
RUNNER = r"""
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    void *library = count == 2 ? dlopen(words[1], RTLD_NOW) : 0;
    int (*report)(void) = library ? (int (*)(void)) dlsym(library, "report") : 0;
    return report ? report() : puts(dlerror());
}
"""
PRINTED = "4034720436 246 16\n"

# Without a C library: for machines and ways of compiling of which there is none.
ALONE = (
    r"""
void *memset(void *to, int byte, unsigned long size) { for (volatile char *at = to; size--;) *at++ = (char) byte; return to; }
"""
    + SHAPES
)
AARCH64_ALONE = (
    ALONE
    + r"""
static long call(long number, long a, long b, long c) {
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
void _start(void) {
    unsigned sum = shapes(7);
    char text[] = "0000000000\n";
    for (int at = 9; sum; sum /= 10) text[at--] += (char) (sum % 10);
    call(64, 1, (long) text, 11);
    call(93, 0, 0, 0);
}
"""
)
ALONE_PRINTED = PRINTED.partition(" ")[0] + "\n"

THROWING = r"""
#include <algorithm>
#include <iostream>
#include <locale>
#include <map>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>
struct Guard { int &count; ~Guard() { ++count; } };
static int deep(int n, int &count) {
    Guard guard{count};
    return n ? deep(n - 1, count) + 1 : static_cast<int>(std::vector<int>(3).at(7));  // thrown inside the library
}
int main() {
    int count = 0;
    std::map<std::string, int> seen;
    try { deep(5, count); } catch (const std::out_of_range &) { seen["out_of_range"] = count; }
    try { std::locale("no such locale"); } catch (const std::runtime_error &) { seen["runtime_error"] = 1; }
    std::thread([&] { try { std::stoi("x"); } catch (const std::invalid_argument &) { seen["invalid_argument"] = 1; } }).join();
    std::ostringstream out;
    for (const auto &[name, number] : seen) out << name << ' ' << number << ' ';
    std::cout << out.str() << std::hex << 255 << std::endl;
}
"""
THROWN = "invalid_argument 1 out_of_range 6 runtime_error 1 ff\n"
