"""The C libraries as the package has them. The object for LD_PRELOAD answers as the functions do that it stands before."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import sframegen
from sframegen.backtrace.library_files import PRELOAD, SHARED, SONAME, STATIC, compile_libraries
from sframegen.backtrace.preloading import HERE, STATISTICS
from sframegen.cli.integration import DIRECTORY as INTEGRATION
from tests import ROOT
from tests.packages.package_makers import needs
from tests.support.cross import MACHINES, Machine
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers, needs_compiler

PREFIXES = ["", *(machine.prefix for machine in MACHINES)]
FUNCTIONS = {"sframe_backtrace", "sframe_backtrace_from", "sframe_backtrace_frames", "sframe_backtrace_prepare", "sframe_end_text"}
ANSWERED = {"backtrace", "unw_backtrace", "_Unwind_Backtrace"}
TAG = (2, 17)  # of manylinux_2_17
VERSIONED = re.compile(r"Name: (?:GLIBC|GCC)_\S+")
LINKED_USER = """
#include <sframe_backtrace.h>
#include <stdio.h>
int main(void) { void *buffer[10]; printf("%d\\n", sframe_backtrace(buffer, 10) > 0); }
"""
# What programs that are linked with libsframe-backtrace.so.0 rely on: another value needs another soname.
INTERFACE = """
#include <sframe_backtrace.h>
#include <stddef.h>
_Static_assert(sizeof(struct sframe_frame) == 24 && _Alignof(struct sframe_frame) == 8, "size");
_Static_assert(offsetof(struct sframe_frame, pc) == 0 && offsetof(struct sframe_frame, cfa) == 8, "addresses");
_Static_assert(offsetof(struct sframe_frame, flags) == 16 && SFRAME_EXACT == 1 && SFRAME_GUESS == 2, "flags");
_Static_assert(sizeof(enum sframe_end) == 4 && SFRAME_OUTERMOST == 0 && SFRAME_FULL == 1 && SFRAME_NO_RULE == 2, "ends");
_Static_assert(SFRAME_UNREADABLE == 3 && SFRAME_DAMAGED == 4 && SFRAME_NOT_ASCENDING == 5, "more ends");
int (*const backtrace)(void **, int) = sframe_backtrace;
int (*const from)(const void *, void **, int) = sframe_backtrace_from;
int (*const frames)(const void *, struct sframe_frame *, int, enum sframe_end *) = sframe_backtrace_frames;
const char *(*const text)(enum sframe_end) = sframe_end_text;
int (*const prepare)(unsigned) = sframe_backtrace_prepare;
"""


def printed(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported(library: Path) -> set[str]:
    lines = printed("nm", "--dynamic", "--defined-only", library).splitlines()
    return {line.split()[2].partition("@")[0] for line in lines if line.split()[1] != "A"}


@pytest.fixture(scope="module", params=PREFIXES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs_compiler(f"{request.param}gcc")
    made = tmp_path_factory.mktemp("libraries")
    assert compile_libraries(HERE, made, [f"{request.param}gcc"]) == ""
    return made


@pytest.mark.dear
def test_they_export_their_functions_and_nothing_else(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {PRELOAD, SHARED, STATIC}
    others = exported(folder / PRELOAD) - ANSWERED
    assert exported(folder / PRELOAD) >= ANSWERED
    assert others
    assert all(name.startswith("_Unwind_Get") for name in others)


def test_programs_that_are_linked_with_it_stay_valid(folder: Path) -> None:
    """The exported names with their version, as Debian's symbols file has them."""
    listed = re.findall(r"^ (\w+)@(\w+) ", (ROOT / "debian/libsframe-backtrace0.symbols").read_text(), re.MULTILINE)
    assert {name for name, _ in listed} == FUNCTIONS | {"SFRAME_BACKTRACE_0"}
    lines = printed("nm", "--dynamic", "--defined-only", "--with-symbol-versions", folder / SHARED).splitlines()
    names = [line.split()[2].split("@") for line in lines]
    assert {(each[0], each[-1]) for each in names} == set(listed)


@for_each("prefix", PREFIXES)
def test_the_header_keeps_its_types(prefix: str, tmp_path: Path) -> None:
    needs_compiler(f"{prefix}gcc")
    (tmp_path / "interface.c").write_text(INTERFACE)
    printed(f"{prefix}gcc", "-std=c11", "-Werror", "-fsyntax-only", "-I", HERE, tmp_path / "interface.c")


def test_they_load_with_any_glibc_and_bind_at_once(folder: Path) -> None:
    """No symbol has a version: that of a new glibc would raise the tag of the wheel."""
    for name, soname in ((SHARED, SONAME), (PRELOAD, PRELOAD)):
        shown = printed("readelf", "--wide", "--dynamic", "--version-info", folder / name)
        assert f"Library soname: [{soname}]" in shown
        assert VERSIONED.findall(shown) == []
        assert "BIND_NOW" in shown
        assert "TEXTREL" not in shown


@pytest.mark.dear
def test_what_they_need_is_in_the_oldest_glibc(tmp_path: Path) -> None:
    """That of the wheel's tag: each function that they need has a version there, or is weak."""
    needs_compiler("gcc")
    assert compile_libraries(HERE, tmp_path, ["gcc"]) == ""
    libc = printed("gcc", "-print-file-name=libc.so.6").strip()
    oldest: dict[str, tuple[int, ...]] = {}
    for name, version in re.findall(r" (\w+)@@?GLIBC_([\d.]+)$", printed("nm", "--dynamic", "--defined-only", libc), re.MULTILINE):
        numbers = tuple(map(int, version.split(".")))
        oldest[name] = min(numbers, oldest.get(name, numbers))
    for library in (SHARED, PRELOAD):
        needed = re.findall(r" U (\w+)$", printed("nm", "--dynamic", "--undefined-only", tmp_path / library), re.MULTILINE)
        assert needed
        assert {name: oldest.get(name) for name in needed if oldest.get(name, (99,)) > TAG} == {}


def copied_source(folder: Path) -> Path:
    shutil.copytree(INTEGRATION / "include", folder / "integration/include")
    return shutil.copytree(HERE, folder / "backtrace")


@for_each(
    ("compiler", "why"),
    [("no-such-compiler", "there is no no-such-compiler"), (str(HERE), f"{HERE} cannot be run: Permission denied")],
    ids=["none", "a directory"],
)
def test_without_a_compiler_it_is_said(compiler: str, why: str, tmp_path: Path) -> None:
    assert compile_libraries(HERE, tmp_path, [compiler]) == why
    assert list(tmp_path.iterdir()) == []


def test_what_does_not_compile_is_said(tmp_path: Path) -> None:
    needs_compiler("gcc")
    source = copied_source(tmp_path)
    (source / "preload.c").write_text("#error no such machine\n")
    assert re.match(r"gcc cannot compile them: .*#error no such machine", compile_libraries(source, tmp_path, ["gcc"]))


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    needs_compiler("gcc")
    shutil.copytree(HERE, tmp_path / "sframegen/backtrace")
    shutil.copytree(INTEGRATION, tmp_path / "sframegen/integration")
    assert compile_libraries(HERE, tmp_path / "sframegen/backtrace", ["gcc"]) == ""
    (tmp_path / "user.c").write_text(LINKED_USER)
    return tmp_path


@pytest.mark.dear
def test_pkg_config_finds_the_static_library(installation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("pkg-config")
    monkeypatch.setenv("PKG_CONFIG_PATH", str(installation / "sframegen/integration/pkgconfig"))
    flags = printed("pkg-config", "--cflags", "--libs", "sframe-backtrace").split()
    printed("gcc", "-o", installation / "user", installation / "user.c", *flags)
    shutil.rmtree(installation / "sframegen")
    assert printed(installation / "user") == "1\n"
    assert "libsframe" not in printed("readelf", "--dynamic", installation / "user")


def test_pkg_config_says_the_version_of_the_package() -> None:
    assert f"\nVersion: {sframegen.__version__}\n" in (INTEGRATION / "pkgconfig/sframe-backtrace.pc").read_text()


@pytest.mark.dear
def test_cmake_finds_it(installation: Path) -> None:
    needs("cmake", "make")
    (installation / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\nproject(user C)\nfind_package(SframeBacktrace REQUIRED)\n"
        "add_executable(user user.c)\ntarget_link_libraries(user SframeBacktrace::SframeBacktrace)\n"
    )
    place = f"-DSframeBacktrace_DIR={installation / 'sframegen/integration/cmake'}"
    printed("cmake", "-S", installation, "-B", installation / "build", place)
    printed("cmake", "--build", installation / "build")
    assert printed(installation / "build/user") == "1\n"


@pytest.mark.dear
def test_a_system_has_it_as_a_shared_library(installation: Path) -> None:
    """What packages of distributions install: packaging/add-libraries."""
    needs("pkg-config")
    root = installation / "root"
    subprocess.run([ROOT / "packaging/add-libraries", root, installation, "usr/lib64"], check=True)
    link = root / "usr/lib64" / SHARED
    assert link.readlink().name == SONAME
    environment = {"PKG_CONFIG_LIBDIR": str(root / "usr/lib64/pkgconfig"), "PKG_CONFIG_SYSROOT_DIR": str(root)}
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "sframe-backtrace"], check=True, capture_output=True, text=True, env=environment
    ).stdout.split()
    assert flags[-1] == "-lsframe-backtrace"
    places = ("-I", root / "usr/include", "-L", link.parent, f"-Wl,-rpath,{link.parent}")
    printed("gcc", "-o", installation / "user", installation / "user.c", *places, flags[-1])
    assert printed(installation / "user") == "1\n"


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
    """Half of the traces are those of _Unwind_Backtrace, which walks 1,024 frames, and leaves the others to libgcc's function."""
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
