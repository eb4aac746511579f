"""Programs without call frame information walk their stacks by what sframegen gave them.

unwinder/ is a small unwinder, in C, with programs to try it on. Its judges: GDB on the untouched original, which reads the
call frame information; and, at every instruction of a program, what the calls and returns so far imply.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import sframegen
from sframegen.elf.file import ElfFile, open_elf
from sframegen.elf.records import PHDR_SIZE
from sframegen.elf.symbols import read_functions
from tests.support.loops import for_each

if TYPE_CHECKING:
    from tests.support.peers import Compiler

pytestmark = pytest.mark.full

HERE = Path(__file__).parent / "unwinder"
SOURCES = [str(HERE / name) for name in ("unwind.c", "stepper.c", "entry.S")]
KINDS: dict[str, tuple[str, ...]] = {
    "dynamic": ("-O2", "-fomit-frame-pointer", "-fpie", "-pie", "-Wl,-z,lazy"),
    "cet": ("-O1", "-fno-omit-frame-pointer", "-fcf-protection", "-no-pie", "-Wl,-z,ibtplt,-z,lazy"),
    "static": ("-O2", "-fomit-frame-pointer", "-static"),
    "static-pie": ("-O2", "-fomit-frame-pointer", "-static-pie"),
    "unoptimized": ("-O0",),
}
STATIC = {kind for kind, flags in KINDS.items() if any(flag.startswith("-static") for flag in flags)}
CFI_SECTIONS = {".eh_frame", ".eh_frame_hdr"}
PT_GNU_EH_FRAME = 0x6474E550
PAGE_SIZE = 4096
LEA_R10_RSP, RET = b"\x49\x8d\x62\xf8", b"\xc3"
SIGNAL = "SIGNAL"  # for a signal frame, which has no name
UNKNOWN = "??"


# The program's own functions, from the leaf on.
SCENARIOS = {
    "chain": "report leaf second first chain main",
    "recursion": f"report leaf {'descend ' * 21}recursion main",
    "callback": "report leaf in_order callback main",
    "realign": "report leaf realigned realigned_argument_pointer realign main",
    "raising": "report leaf handler SIGNAL raise_in_leaf raising main",
    "raising-other-stack": "report leaf handler SIGNAL raise_in_leaf raising_other_stack main",
    "raising-realigned": "report leaf handler SIGNAL raise_in_realigned raising_realigned main",
    "nested": "report leaf handler SIGNAL raise_in_leaf handler_that_raises SIGNAL raise_in_leaf nested main",
    "fault": "report leaf handler fault_handler SIGNAL fault_in_leaf fault main",
    "fault-other-stack": "report leaf handler fault_handler SIGNAL fault_in_leaf fault_other_stack main",
    "fault-first": "report leaf handler fault_handler SIGNAL fault_at_once fault_first main",
    "fault-realigning": "report leaf handler fault_handler SIGNAL fault_while_realigning fault_realigning main",
    "thread": "report leaf in_thread",
    "at-exit": "report leaf at_end at_exit main",
}
# Kinds of rules that a walk must meet, lest its scenario show nothing.
MUST_MEET = {"realign": "flex-fp-deref", "raising-realigned": "flex-fp-deref", "fault-realigning": "flex-register"}

# (least number of instructions, kinds of rules that must be met)
STEPPED: dict[str, tuple[int, set[str]]] = {
    "library": (30_000, {"default-sp", "default-fp"}),
    "realign": (100, {"flex-register", "flex-fp-deref"}),
    "raising-other-stack": (100, {"signal"}),
    "nested": (300, {"signal"}),
    "fault-realigning": (100, {"flex-register", "signal"}),
    "odd-rules": (30, {"flex-register", "flex-other"}),
}


class Frame(NamedTuple):
    name: str
    page_offset: int  # of its PC; 0 for signal frames: GDB shows none


class Walk(NamedTuple):
    """What a walk found: GDB has one name for a frame, we all that the function has."""

    frames: list[tuple[set[str], int]]  # names, page offset
    shapes: set[str]
    end: str


def blind(original: Path, target: Path) -> None:
    """Adds .sframe; then nothing is left of .eh_frame and .eh_frame_hdr but zeros, and no segment points there."""
    sframegen.add_section(original, output=target, verify=False)
    elf = open_elf(target)
    data = bytearray(elf.data)
    for section in elf.sections:
        if section.name in CFI_SECTIONS:
            header = section.header
            data[header.sh_offset : header.sh_offset + header.sh_size] = bytes(header.sh_size)
    for number, segment in enumerate(elf.segments):
        if segment.p_type == PT_GNU_EH_FRAME:
            at = elf.header.e_phoff + number * PHDR_SIZE
            data[at : at + 4] = bytes(4)
    target.unlink()
    target.write_bytes(data)
    target.chmod(0o755)


class Programs:
    """One kind's original, and the same without call frame information."""

    def __init__(self, original: Path, directory: Path, library: Path) -> None:
        self.original = original
        self.blinded = directory / "scenarios"
        self.environ = os.environ | {"LD_LIBRARY_PATH": str(library.parent)}
        self.files = {"-": open_elf(original), str(library): open_elf(library)}
        self._by_gdb: dict[str, list[Frame]] = {}
        blind(original, self.blinded)

    def run(self, *arguments: str) -> str:
        done = subprocess.run([self.blinded, *arguments], env=self.environ, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def walk(self, scenario: str) -> Walk:
        *lines, end = self.run(scenario).splitlines()
        walk = Walk([], set(), end)
        for line in lines:
            kind, address, where, shape, file = line.split()
            assert kind == "frame"
            walk.shapes.add(shape)
            pc = int(address, 16)
            if shape == "signal":
                walk.frames.append(({SIGNAL}, 0))
            else:
                walk.frames.append((names_at(self.files[file], pc - (where == "call")), pc % PAGE_SIZE))
        return walk

    def by_gdb(self, scenario: str) -> list[Frame]:
        self._by_gdb = self._by_gdb or ask_gdb(self.original)
        return self._by_gdb[scenario]


def names_at(elf: ElfFile, address: int) -> set[str]:
    return {symbol.name for symbol in read_functions(elf) if 0 <= address - symbol.address < symbol.size} or {UNKNOWN}


def ask_gdb(program: Path) -> dict[str, list[Frame]]:
    """Each scenario's stack at report(), from the leaf on."""
    if shutil.which("gdb") is None:
        pytest.skip("no gdb on this machine")
    before = [f"set debug-file-directory {program.parent / 'none'}", "set debuginfod enabled off", "set auto-load no"]
    commands = [
        "set backtrace past-main on",
        "set startup-with-shell off",
        "set disable-randomization off",
        "set width 0",
        "set print demangle off",  # would make msort_with_tmp.part of msort_with_tmp.part.0
        "handle SIGUSR1 SIGUSR2 SIGSEGV nostop noprint pass",
        "break *report",
    ]
    for scenario in SCENARIOS:
        commands += [f"echo \\n@{scenario}\\n", f"run {scenario}", "bt", "echo \\n@\\n", "kill"]
    options = [part for command in before for part in ("-iex", command)] + [
        part for command in commands for part in ("-ex", command)
    ]
    done = subprocess.run(["gdb", "-nx", "-batch", *options, program], capture_output=True, text=True, check=True)
    stacks: dict[str, list[Frame]] = {}
    for part in done.stdout.split("\n@")[1:]:
        scenario, _, text = part.partition("\n")
        found = re.findall(r"^#\d+ +(?:0x([0-9a-f]+) in (\S+) \(|<signal handler called>)", text, re.MULTILINE)
        assert len(found) == text.count("\n#")
        if scenario:
            stacks[scenario] = [Frame(name or SIGNAL, int(pc or "0", 16) % PAGE_SIZE) for pc, name in found]
    assert stacks.keys() == SCENARIOS.keys(), done.stdout + done.stderr
    return stacks


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine's C library, blinded."""
    name = "libc.so.6"
    path = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
    target = tmp_path_factory.mktemp("library") / name
    blind(Path(path).resolve(), target)
    return target


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def programs(kind: str, compile_c: Compiler, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    source = (HERE / "scenarios.c").read_text()
    original = compile_c(source, *KINDS[kind], f"-I{HERE}", *SOURCES, "-pthread", name="scenarios")
    return Programs(original, tmp_path_factory.mktemp(kind), library)


@for_each("scenario", SCENARIOS)
def test_a_walk_by_sframe_finds_what_gdb_finds(scenario: str, programs: Programs) -> None:
    walk = programs.walk(scenario)
    by_gdb = programs.by_gdb(scenario)
    assert walk.end == "end outermost"
    assert len(walk.frames) == len(by_gdb)
    for (names, page_offset), frame in zip(walk.frames, by_gdb, strict=True):
        assert frame.name in names
        assert page_offset == frame.page_offset
    own = SCENARIOS[scenario].split()
    assert [frame.name for frame in by_gdb if frame.name in own] == own
    assert scenario not in MUST_MEET or MUST_MEET[scenario] in walk.shapes


def test_nothing_else_can_walk_there(programs: Programs) -> None:
    def by_library(file: Path, environ: dict[str, str]) -> str:
        done = subprocess.run([file, "backtrace"], env=environ, capture_output=True, text=True, check=False)
        return "aborted" if done.returncode == -signal.SIGABRT else done.stdout.strip()

    assert int(by_library(programs.original, dict(os.environ))) >= 3  # main, the library's, _start
    assert by_library(programs.blinded, programs.environ) in {"0", "1", "aborted"}


def test_what_objcopy_leaves_can_be_walked_too(programs: Programs, tmp_path: Path) -> None:
    with_section, without_cfi = tmp_path / "with-section", tmp_path / "without-cfi"
    sframegen.add_section(programs.original, output=with_section, verify=False)
    removed = [f"--remove-section={name}" for name in CFI_SECTIONS]
    subprocess.run(["objcopy", *removed, with_section, without_cfi], check=True)
    assert {section.name for section in open_elf(without_cfi).sections} & CFI_SECTIONS == set()
    done = subprocess.run([without_cfi, "realign"], env=programs.environ, capture_output=True, text=True, check=True)
    assert done.stdout == programs.run("realign")


@for_each("scenario", STEPPED)
def test_the_walk_is_right_at_every_instruction(scenario: str, programs: Programs, kind: str) -> None:
    counts: Counter[str] = Counter()
    elf = programs.files["-"]
    for line in programs.run("step", scenario).splitlines():
        what, first, second, *_ = line.split()
        if what == "count":
            counts[first] = int(second)
            continue
        code = bytes(elf.at(int(first, 16), 4)) if second == "-" else b""
        if what == "lost":  # the PLT of static programs has no call frame information
            plt = elf.section(".plt")
            assert kind in STATIC, line
            assert plt is not None
            assert 0 <= int(first, 16) - plt.header.sh_addr < plt.header.sh_size, line
        else:  # gcc's own call frame information says *(rbp) still after it has popped rbp
            assert (what, scenario) == ("wrong-fp", "realign"), line
            assert code == LEA_R10_RSP or code[:1] == RET, line
    least, shapes = STEPPED[scenario]
    assert counts["steps"] > least
    assert {shape for shape in shapes if not counts[shape]} == set()
    if kind in STATIC:
        assert counts["outside"] == 0
    else:
        assert counts["mask"] > 0
