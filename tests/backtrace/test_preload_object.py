"""The object for LD_PRELOAD: its answers are those of the functions behind it, with sections and without; exceptions go on."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import sframegen
from sframegen.backtrace.library_files import PRELOAD, compile_libraries
from sframegen.backtrace.preloading import HERE, STATISTICS
from tests.support.cross import MACHINES, Machine
from tests.support.loops import for_each
from tests.support.peers import needs_compiler

if TYPE_CHECKING:
    from tests.support.peers import Compiler, Peers

PLACE = Path(__file__).parent
LIBRARIES = ("libc.so.6", "libgcc_s.so.1", "libstdc++.so.6")
COUNTED = re.compile(r"sframegen preload: process \d+: (\d+) stack traces from sections, (\d+) by the program's own unwinder(.*)\n")


@pytest.fixture(scope="module")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_compiler("gcc")
    folder = tmp_path_factory.mktemp("libraries")
    assert compile_libraries(HERE, folder, ["gcc"]) == ""
    return folder / PRELOAD


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sections")
    for name in LIBRARIES:
        found = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        sframegen.add_section(os.path.realpath(found), output=folder / name)
    return folder


def run(preload: Path, program: Path, *arguments: str, libraries: Path | None = None) -> tuple[str, int, int, str]:
    """What a program prints, how many traces came from sections and how many not, and where the first of these stopped."""
    environment = {"LD_PRELOAD": str(preload), STATISTICS: "1", "PATH": os.environ["PATH"]}
    if libraries:
        environment["LD_LIBRARY_PATH"] = str(libraries)
    done = subprocess.run([program, *arguments], check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = COUNTED.fullmatch(done.stderr)
    assert counted, done.stderr
    return done.stdout, int(counted[1]), int(counted[2]), counted[3]


def with_section(program: Path, folder: Path) -> Path:
    sframegen.add_section(program, output=folder / program.name)
    return folder / program.name


@pytest.fixture
def drop_in(compile_c: Compiler) -> Path:
    return compile_c((PLACE / "drop_in.c").read_text(), "-O2", "-Wno-pedantic", "-fno-optimize-sibling-calls")


@pytest.mark.dear
@pytest.mark.parametrize(("depth", "known"), [(3, 24), (100, 24), (1500, 12)])
def test_traces_from_sections_are_those_of_the_functions_behind(
    preload: Path, sections: Path, drop_in: Path, tmp_path: Path, depth: int, known: int
) -> None:
    """Half of them are of _Unwind_Backtrace, which walks 1,024 frames itself; then the function behind goes on."""
    printed, answered, passed_on, _ = run(preload, with_section(drop_in, tmp_path), str(depth), libraries=sections)
    assert printed.endswith(" frames, 0 differences\n")
    assert (answered, passed_on) == (known, 24 - known)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@for_each("has_sections", [True, False])
def test_other_machines(peers: Peers, machine: Machine, tmp_path: Path, *, has_sections: bool) -> None:
    """By qemu. On s390x, where the kernel's trampoline has no place in a library, traces of the signal handler may be passed on."""
    compiler = machine.compiler(peers, tmp_path)
    program = compiler((PLACE / "drop_in.c").read_text(), "-O2", "-Wno-pedantic", "-fno-optimize-sibling-calls")
    assert compile_libraries(HERE, tmp_path, [f"{machine.prefix}gcc"]) == ""
    if has_sections:
        program = with_section(program, tmp_path)
        for name in LIBRARIES[:2]:
            sframegen.add_section(Path(machine.root, "lib", name).resolve(), output=tmp_path / name)
    settings: dict[str, Path | str] = {"LD_PRELOAD": tmp_path / PRELOAD, "LD_LIBRARY_PATH": tmp_path, STATISTICS: "1"}
    command = machine.command(machine.root, program, "20", **settings)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" frames, 0 differences\n")
    [counted] = COUNTED.findall(done.stderr)
    assert (int(counted[0]) >= 12) == has_sections


def test_traces_that_stop_half_way_are_those_of_the_functions_behind(preload: Path, drop_in: Path, tmp_path: Path) -> None:
    """The program has a section, and libc has none: frames that were delivered already are not delivered again."""
    printed, answered, passed_on, stopped = run(preload, with_section(drop_in, tmp_path), "10")
    assert printed.endswith(" frames, 0 differences\n")
    assert answered < passed_on
    assert "libc.so.6 + 0x" in stopped


@for_each("has_sections", [True, False])
def test_exceptions_are_thrown_and_caught(
    preload: Path, sections: Path, compile_c: Compiler, tmp_path: Path, *, has_sections: bool
) -> None:
    program = compile_c((PLACE / "throwing.cc").read_text(), "-x", "c++", "-O2", "-pthread", "-lstdc++")
    if has_sections:
        program = with_section(program, tmp_path)
    printed, answered, _, _ = run(preload, program, libraries=sections if has_sections else None)
    assert printed == "500 caught\n"
    assert (answered > 1000) == has_sections


HOST = """
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    for (int round = 0; round < 3; round++) {
        void *plugin = dlopen(words[count - 1], RTLD_NOW | RTLD_LOCAL);
        int (*thrown)(void);
        if (!plugin)
            return puts(dlerror()), 1;
        *(void **)&thrown = dlsym(plugin, "thrown");
        printf("%d\\n", thrown());
        dlclose(plugin);
    }
}
"""
PLUGIN = """
#include <stdexcept>
#include <vector>
static void __attribute__((noinline)) raise() { std::vector<int> destroyed(3); throw std::runtime_error("plugin"); }
extern "C" int thrown() { try { raise(); } catch (const std::exception &) { return 7; } return 0; }
"""


OTHER_UNWINDER = """
#include <stdlib.h>
#include <unwind.h>
static long mark = 4711;
static void check(struct _Unwind_Context *context) { if (*(long *)context != mark) abort(); }
_Unwind_Reason_Code _Unwind_Backtrace(_Unwind_Trace_Fn call, void *argument) {
    for (int frame = 0; frame < 20; frame++)
        if (call((void *)&mark, argument) != _URC_NO_REASON)
            break;
    return _URC_END_OF_STACK;
}
_Unwind_Ptr _Unwind_GetIP(struct _Unwind_Context *context) { check(context); return 1; }
_Unwind_Ptr _Unwind_GetIPInfo(struct _Unwind_Context *context, int *is_exact) { *is_exact = 0; check(context); return 1; }
void *_Unwind_GetLanguageSpecificData(struct _Unwind_Context *context) { check(context); return NULL; }
"""
OTHER_PLUGIN = """
#include <unwind.h>
static _Unwind_Reason_Code called(struct _Unwind_Context *context, void *is_exact) {
    _Unwind_GetLanguageSpecificData(context);
    return _Unwind_GetIP(context) == 1 && _Unwind_GetIPInfo(context, is_exact) == 1 ? _URC_END_OF_STACK : _URC_NO_REASON;
}
int thrown(void) { int is_exact; _Unwind_Backtrace(called, &is_exact); return 7; }
"""


def test_two_unwinders_that_come_late(preload: Path, compile_c: Compiler) -> None:
    """No context goes to the unwinder of another plugin, which did not make it."""
    folder = compile_c(OTHER_UNWINDER, "-shared", "-fPIC", name="libother.so").parent
    link = (f"-L{folder}", f"-Wl,-rpath,{folder}", "-Wl,--no-as-needed", "-lother")
    other = compile_c(OTHER_PLUGIN, "-shared", "-fPIC", *link, name="plugin-other.so")
    plugin = compile_c(PLUGIN, "-x", "c++", "-shared", "-fPIC", "-lstdc++", name="plugin.so")
    host = compile_c(HOST.replace("int main(", "int one(") + TWO, "-O1")
    assert run(preload, host, str(other), str(plugin))[0] == "7\n" * 6


TWO = "int main(int count, char **words) { one(count - 1, words); one(count, words); }"
CLOSING = """
#include <dlfcn.h>
#include <stdio.h>
#include <sys/mman.h>
int main(int count, char **words) {
    const char *none = dlerror();
    puts(none ? none : "no error");
    for (int round = 0; round < 3; round++) {
        void *plugin = dlopen(words[count - 1], RTLD_NOW | RTLD_LOCAL);
        int (*traced)(void);
        *(void **)&traced = dlsym(plugin, "traced");
        printf("%d\\n", traced());
        dlclose(plugin);
        for (int size = 1; size < 200; size++) /* where its libraries were */
            mmap(NULL, 4096 * (size % 7 + 1), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
}
"""
TRACED = """
#include <unwind.h>
int unw_backtrace(void **, int);
static _Unwind_Reason_Code called(struct _Unwind_Context *context, void *count) {
    *(int *)count += _Unwind_GetIP(context) != 0;
    return _URC_NO_REASON;
}
int traced(void) {
    void *buffer[50];
    int count = 0;
    _Unwind_Backtrace(called, &count);
    return unw_backtrace(buffer, 50) + (count > 2);
}
"""


def test_unwinders_that_are_closed_while_their_addresses_are_known(preload: Path, compile_c: Compiler) -> None:
    library = compile_c(UNWINDER, "-shared", "-fPIC", name="libunwinder.so")
    link = (f"-L{library.parent}", f"-Wl,-rpath,{library.parent}", "-lunwinder", "-Wl,--no-as-needed", "-lgcc_s")
    plugin = compile_c(TRACED, "-shared", "-fPIC", *link, name="traced.so")
    assert run(preload, compile_c(CLOSING, "-O1", "-D_GNU_SOURCE"), str(plugin))[0] == "no error\n" + "-39\n" * 3


UNWINDER = "int unw_backtrace(void **buffer, int size) { buffer[0] = buffer; return size > 40 ? -40 : -1; }"
USER = """
#include <stdio.h>
int unw_backtrace(void **, int);
int main(void) {
    void *buffer[50];
    int length = unw_backtrace(buffer, 50);
    printf("%d %d\\n", length > 2, length);
}
"""


def test_the_call_of_libunwind(preload: Path, sections: Path, compile_c: Compiler, tmp_path: Path) -> None:
    library = compile_c(UNWINDER, "-shared", "-fPIC", name="libunwinder.so")
    program = compile_c(USER, f"-L{library.parent}", f"-Wl,-rpath,{library.parent}", "-O1", "-lunwinder")
    assert run(preload, program)[0] == "0 -40\n"
    assert run(preload, with_section(program, tmp_path), libraries=sections)[0].startswith("1 ")


def test_without_being_asked_it_prints_nothing(preload: Path, drop_in: Path) -> None:
    done = subprocess.run([drop_in], check=True, capture_output=True, text=True, env={"LD_PRELOAD": str(preload)})
    assert done.stderr == ""
