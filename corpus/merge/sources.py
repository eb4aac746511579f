"""Sources of many objects, by a seed: C, C++ with COMDAT groups, assembly with hand-written CFI, in the ways that projects compile.

Every object has functions `int fNNN_K(int x, int depth)` that call those of other objects while `depth` lasts, so that some are
reached from main and others are not. Names of functions are unique among all objects, except those of section groups.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from .assembly import assembly


class Source(NamedTuple):
    """`name` becomes name.o; `flags` besides those of all sources."""

    name: str
    text: str
    language: str  # as the driver's -x: c, c++, assembler
    flags: tuple[str, ...]


C_FLAGS = (
    ("-O2",),
    ("-O2", "-ffunction-sections", "-fdata-sections"),
    ("-O2", "-ffunction-sections", "-fno-omit-frame-pointer"),
    ("-Os", "-ffunction-sections"),
    ("-O3",),
    ("-O1", "-fno-plt", "-ffunction-sections"),
    ("-O0",),
    ("-O2", "-falign-functions=64", "-fno-reorder-functions"),
)
CXX_FLAGS = (("-O2", "-ffunction-sections", "-fdata-sections"), ("-O2",), ("-Os",), ("-O0",), ("-O2", "-fno-omit-frame-pointer"))
PLACES = ("", 'section(".text.odd")', 'section("oddly_named")', 'section(".init.text")', "cold", "hot", "aligned(256)")
EXTERNAL = "int fail(int) __attribute__((cold, noreturn));\nextern volatile int sink;\n"
# Equal code in many objects, for linkers that fold it; what section groups hold, compiled in many ways.
FOLDED = "static __attribute__((noinline, noclone)) int same_{tag}(int x) {{ sink = x; return sink * {by} + 1; }}\n"
GROUPED = """
template <int N> struct Ring {
    int items[8 + N]; int used;
    __attribute__((noinline)) int push(int v) { if (used == 8 + N) fail(v); items[used++] = v + N; return used; }
    __attribute__((noinline)) int sum(int d) { int all = 0; for (int i = 0; i < used; i++) all += items[i] * d; return all; }
};
struct Base { virtual int run(int x) = 0; virtual ~Base() {} };
template <int N> struct Derived : Base {
    Ring<N> ring = {};
    int run(int x) override { for (int i = 0; i < 4; i++) ring.push(x + i); return ring.sum(N); }
    ~Derived() override { sink = ring.used; }
};
template <int N> __attribute__((noinline)) inline int guarded(int x) {
    Derived<N> one;
    try { if (sink == 12345 + N) throw x; return one.run(x); } catch (int y) { return y + N; }
}
"""
STANDARD = """
#include <map>
#include <string>
#include <vector>
static int counted(int x) {
    std::map<std::string, int> found;
    std::vector<std::string> names;
    for (int i = 0; i < 3; i++) names.push_back(std::to_string(x + i));
    for (auto const &name : names) found[name] = x;
    return found.size();
}
"""


def sources(seed: int, count: int, machine: str) -> list[Source]:
    """`count` objects and main.o. `machine`: its assembly, x86-64, arm64 or s390x."""
    chance = random.Random(seed)  # noqa: S311 - the same sources at each run is what it is for
    functions = [chance.randint(2, 6) for _ in range(count)]
    made = []
    for number in range(count):
        calls = [_call(chance, functions, number) for _ in range(functions[number])]
        kind = chance.choices(("c", "c++", "assembler"), (5, 3, 1))[0] if number >= 3 else ("c", "c++", "assembler")[number]
        name = f"f{number:03}"
        if kind == "c":
            made.append(Source(name, _c(chance, number, calls), kind, chance.choice(C_FLAGS)))
        elif kind == "c++":
            made.append(Source(name, _cxx(chance, number, calls), kind, chance.choice(CXX_FLAGS)))
        else:
            made.append(Source(name, assembly(chance, machine, number, calls), kind, ()))
    return [*made, Source("main", _main(chance, functions), "c", ("-O2",))]


def _call(chance: random.Random, functions: list[int], number: int) -> str:
    """The name of a function of another object."""
    other = chance.choice([one for one in range(len(functions)) if one != number] or [number])
    return f"f{other:03}_{chance.randrange(functions[other])}"


def _c(chance: random.Random, number: int, calls: list[str]) -> str:
    parts = ["#include <stdio.h>\n#include <stdlib.h>\n", EXTERNAL]
    parts += [f"int {call}(int, int);\n" for call in dict.fromkeys(calls)]
    parts.append(FOLDED.format(tag=f"f{number:03}", by=chance.choice((3, 5))))
    for k, call in enumerate(calls):
        place = chance.choice(PLACES) if chance.random() < 0.3 else ""
        body = chance.choice(C_BODIES).format(
            call=call, n=chance.randint(1, 60) * 8, big=chance.choice((0, 0, 5000)), tag=f"f{number:03}"
        )
        parts.append(f"{f'__attribute__(({place})) ' if place else ''}int f{number:03}_{k}(int x, int depth) {{\n{body}}}\n")
    if chance.random() < 0.2:
        parts.append(f"__attribute__((constructor)) static void start_f{number:03}(void) {{ sink += {number}; }}\n")
    return "".join(parts)


C_BODIES = (
    """    int kept = x * 3 + same_{tag}(x);
    if (__builtin_expect(x == 77777, 0)) {{ printf("%d\\n", kept); fail(kept); }}
    return depth > 0 ? kept + {call}(x + 1, depth - 1) : kept;
""",
    """    volatile char room[{n} + {big}];
    room[x & 7] = x;
    int first = depth > 0 ? {call}(x, depth - 1) : 1, second = depth > 1 ? {call}(x ^ 5, depth - 2) : 2;
    return first * second + room[x & 7];
""",
    """    char *room = __builtin_alloca((x & 63) + 16);
    snprintf(room, 16, "%d", x);
    return depth > 0 ? {call}(atoi(room), depth - 1) : room[0];
""",
    """    char room[(x & 31) + 16] __attribute__((aligned(64)));
    room[x & 15] = x;
    __asm__ volatile("" :: "r"(room) : "memory");
    return depth > 0 ? {call}(room[x & 15], depth - 1) + room[0] : x;
""",
    """    void (*volatile release)(void *) = free;
    int *got = malloc({n} + 8);
    if (!got) fail({n});
    got[0] = depth > 0 ? {call}(x, depth - 1) : x;
    int result = got[0];
    if (result & 1) free(got); else release(got);
    return result;
""",
    """    return depth > 0 ? {call}(x + {n}, depth - 1) : x;
""",
    """    switch (x & 7) {{
    case 0: return same_{tag}(x);
    case 1: printf("%s", ""); return 2;
    case 2: return depth > 0 ? {call}(x >> 1, depth - 1) : 3;
    case 3: puts(""); break;
    case 4: return abs(x);
    case 5: return depth > 2 ? {call}(x >> 1, depth - 3) : 4;
    }}
    return x + same_{tag}(x + {n});
""",
    """    return x * {n};
""",
)


def _cxx(chance: random.Random, number: int, calls: list[str]) -> str:
    standard = chance.random() < 0.15
    parts = ['extern "C" {\n', EXTERNAL]
    parts += [f"int {call}(int, int);\n" for call in dict.fromkeys(calls)]
    parts += ["}\n", STANDARD if standard else "", GROUPED]
    for k, call in enumerate(calls):
        instance = chance.randrange(24)
        body = chance.choice(CXX_BODIES).format(call=call, n=instance, more=" + counted(x)" if standard else "")
        parts.append(f'extern "C" int f{number:03}_{k}(int x, int depth) {{\n{body}}}\n')
    return "".join(parts)


CXX_BODIES = (
    "    return guarded<{n}>(x) + (depth > 0 ? {call}(x, depth - 1) : 0){more};\n",
    "    Derived<{n}> one; Base *base = &one;\n    return base->run(depth > 0 ? {call}(x, depth - 1) : x){more};\n",
    """    Ring<{n}> ring = {{}};
    for (int i = 0; i < 6; i++) ring.push(x);
    struct Last {{ Ring<{n}> &r; ~Last() {{ sink = r.sum(2); }} }} last = {{ring}};
    return depth > 0 ? {call}(ring.sum(1), depth - 1) : x{more};
""",
    """    auto twice = [=](int y) __attribute__((noinline)) {{ return y * 2 + x; }};
    return twice(depth > 0 ? {call}(x, depth - 1) : x){more};
""",
)


def _main(chance: random.Random, functions: list[int]) -> str:
    """Calls functions of some objects; those of the others come by way of these, or not at all."""
    roots = chance.sample(range(len(functions)), max(1, len(functions) // 6))
    calls = [f"f{root:03}_{chance.randrange(functions[root])}" for root in sorted(roots)]
    lines = ["#include <stdlib.h>", "volatile int sink;", "__attribute__((cold, noreturn)) int fail(int x) { exit(x | 1); }"]
    lines += [f"int {call}(int, int);" for call in calls]
    lines += ["int main(int argc, char **argv) {", "    (void) argv;", "    int all = 0;"]
    lines += [f"    all += {call}(argc, 3);" for call in calls]
    return "\n".join([*lines, "    return all == -1;", "}", ""])
