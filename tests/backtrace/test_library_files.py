"""The C libraries as the package has them: for each machine, with nothing but their functions, without versions of one glibc."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

import sframegen
from sframegen.backtrace.library_files import PRELOAD, SHARED, SONAME, STATIC, compile_libraries
from sframegen.backtrace.preloading import HERE
from sframegen.cli.integration import DIRECTORY as INTEGRATION
from tests import ROOT
from tests.packages.package_makers import needs
from tests.support.cross import MACHINES
from tests.support.loops import for_each
from tests.support.peers import needs_compiler

if TYPE_CHECKING:
    from pathlib import Path

PREFIXES = ["", *(machine.prefix for machine in MACHINES)]
FUNCTIONS = {"sframe_backtrace", "sframe_backtrace_from", "sframe_backtrace_frames", "sframe_backtrace_prepare", "sframe_end_text"}
ANSWERED = {"backtrace", "unw_backtrace", "_Unwind_Backtrace"}
TAG = (2, 17)  # of manylinux_2_17
VERSIONED = re.compile(r"Name: (?:GLIBC|GCC)_\S+")
USER = """
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
    (tmp_path / "user.c").write_text(USER)
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
