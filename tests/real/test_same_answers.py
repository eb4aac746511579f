"""Tools that read files and processes say the same with and without the added section, except what was added and moved."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from sframegen import add_section, read
from tests.real.post_link import LIBRARY, SUBJECTS, Workshop
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

pytestmark = pytest.mark.full

# What readelf -a may say of one file alone, once moved sections are given their old places.
OF_ONE_ALONE = (
    r" (Start of section headers|Number of (program|section) headers): .*",
    r"There are \d+ (section|program) headers, .*",
    r" \[N\] \.(shstrtab|sframe|sframegen\.\w+) .*",
    r" Section header string table index: \d+",
    r" (PHDR|GNU_SFRAME) .*",
    r" LOAD .* R( E)? 0x\w+",  # what holds the program headers, which may grow; and new ones
    r" NOTE .*",  # one that says what GNU_PROPERTY says
)


BEFORE = ("non-PIE", "lld", "gold", "mold")  # with fixed addresses: whose offsets in the file grow
NUMBER = r"(?<=\b0x)[0-9a-f]+\b|\b[0-9a-f]{6,16}\b"


class Both:
    """The file before and after, and what tools say of each, with the old addresses of what moved."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.old, self.new = shop.original, shop.result
        with ExitStack() as closing:
            old, new = (list(ELFFile(closing.enter_context(file.open("rb"))).iter_sections()) for file in (self.old, self.new))
        kept = [section for section in new if not section.name.startswith(".sframe")]
        pairs = list(zip(old, kept, strict=True))
        self.names = {a.name for a, b in pairs if a["sh_addr"] != b["sh_addr"]}
        self.places = {b[field]: a[field] for a, b in pairs for field in ("sh_addr", "sh_offset") if a[field] != b[field]}

    @cached_property
    def old_in_gdb(self) -> list[str]:
        return ask_gdb(self.shop, self.old)

    def before(self, number: re.Match[str]) -> str:
        """Of a hexadecimal number: itself, or the old place of something that is now there."""
        return f"{self.places.get(int(number[0], 16), int(number[0], 16)):x}"

    def differences(self, old: list[str], new: list[str]) -> list[str]:
        """Lines of either that the other has not, when what moved is given its old place; the others have the same order."""
        gone, came = Counter(old) - Counter(new), Counter(new) - Counter(old)
        assert [line for line in old if line not in gone] == [line for line in new if line not in came]
        gone = Counter(re.sub(NUMBER, lambda number: f"{int(number[0], 16):x}", line) for line in gone.elements())
        came = Counter(re.sub(NUMBER, self.before, line) for line in came.elements())
        return [re.sub(" +", " ", line) for line in ((gone - came) + (came - gone))]

    def ask(self, tool: str, *arguments: str) -> tuple[list[str], list[str]]:
        """Lines. Each file is named without its directory."""
        said = []
        for file in (self.old, self.new):
            command = [shutil.which(tool) or pytest.skip(f"no {tool} on this machine"), *arguments, f"./{file.name}"]
            said.append(subprocess.run(command, cwd=file.parent, check=True, capture_output=True, text=True).stdout)
        return said[0].splitlines(), said[1].splitlines()

    def ask_peer(self, tool: str, *arguments: str) -> tuple[list[str], list[str]]:
        machine = self.shop.subject.machine
        return self.ask(self.shop.peers.tool((machine.prefix if machine else "") + tool), *arguments)


@pytest.fixture(scope="module", params=SUBJECTS, ids=lambda subject: subject.name)
def both(request: pytest.FixtureRequest, peers: Peers, compile_c: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(Workshop.of(request.param, tmp_path_factory.mktemp("shop"), peers, compile_c))


def without_numbers(line: str) -> str:
    """A line of readelf without the numbers of sections, which grow after new ones."""
    line = re.sub(r"^  \[ *\d+\] (.*?)(?: +\d+){3}$", r"  [N] \1", line)
    line = re.sub(r"^(  \[N\] .* [0-9a-f]{16} [0-9a-f]{6,}) ([0-9a-f]{6,} )", r"\1 size \2", line)
    line = re.sub(r"( size )0*", r"\1", line)
    return re.sub(r"^( *\d+: [0-9a-f]{16} +\w+ \w+ +\w+ +\w+ +(?:\[[^]]*\] +)?)\d+ ", r"\1N ", line)


def test_readelf_a(both: Both) -> None:
    """But for its list of the sections in each segment, which follows from their places."""
    old, new = (
        [without_numbers(line) for line in said if not re.match(r"   \d\d     ", line)] for said in both.ask_peer("readelf", "-aW")
    )
    assert len(old) > 100
    shifted = [r" (LOAD|DYNAMIC|TLS|GNU_RELRO|GNU_EH_FRAME) .*"] if both.shop.subject.name in BEFORE else []
    may_differ = [*OF_ONE_ALONE, *shifted, *([r" Start of program headers: .*"] if "tail" in both.shop.subject.name else [])]
    differences = both.differences(old, new)
    assert [line for line in differences if not any(re.fullmatch(pattern, line) for pattern in may_differ)] == []


@for_each("tool", ["nm -a", "nm -D", "objdump -d", "objdump -T", "readelf -wFi"])
def test_symbols_code_and_debug_information(tool: str, both: Both) -> None:
    if tool in {"nm -D", "objdump -T"} and both.shop.subject.name.startswith("static-PIE"):
        return
    old, new = both.ask_peer(*tool.split())
    assert len(old) > 2 or both.shop.subject.name == "bash"
    assert both.differences(old, new) == []


def test_file_and_ldd(both: Both) -> None:
    for tool in ("file", "ldd") if both.shop.subject.machine is None else ("file",):
        old, new = ([re.sub(r" \(0x\w+\)", "", line) for line in said] for said in both.ask(tool))
        assert new == old != []


GDB = (
    "set debuginfod enabled off", "set breakpoint pending on", "set confirm off", "break {function}", "run", "backtrace",
    "info symbol $pc", "info line *$pc", "x/4i $pc", "finish", "info symbol $pc", "info types Counter", "continue",
)  # fmt: skip


def ask_gdb(shop: Workshop, file: Path) -> list[str]:
    """Without the places where libraries are loaded, and without directories."""
    if shutil.which("gdb") is None:
        pytest.skip("no gdb on this machine")
    command, environ = shop.command(file)
    function = {"bash": "execute_command", LIBRARY: "report"}.get(shop.subject.source or "bash", "with_alloca")
    steps = [word for step in GDB for word in ("-ex", step.format(function=function))]
    asked = ["gdb", "-nx", "-batch", *steps, "--args", *command]
    done = subprocess.run(asked, env=environ, check=True, capture_output=True, text=True, cwd=shop.directory)
    said = re.sub(r"(/[^/\s]+)+/(?=[^/\s])", "", done.stdout + done.stderr)
    assert f"Breakpoint 1, {function}" in said or f"in {function} ()" in said, said
    return [line for line in re.sub(r"0x0*7f[0-9a-f]{10}|process \d+", "...", said).splitlines() if line]


def test_gdb(both: Both) -> None:
    if not both.shop.subject.machine:
        assert ask_gdb(both.shop, both.new) == both.old_in_gdb


def strip(file: Path, target: Path, peers: Peers) -> None:
    """Debug information goes into a file of its own."""
    debug = target.with_name("its.debug")
    subprocess.run([peers.tool("objcopy"), "--only-keep-debug", file, debug], check=True, stderr=subprocess.PIPE)
    subprocess.run([peers.tool("strip"), "-o", target, file], check=True, stderr=subprocess.PIPE)
    subprocess.run([peers.tool("objcopy"), f"--add-gnu-debuglink={debug}", target], check=True, stderr=subprocess.PIPE)


@for_each("strip_first", [False, True])
def test_gdb_with_a_debug_file(strip_first: bool, both: Both, peers: Peers, tmp_path: Path) -> None:
    if both.shop.subject.name not in {"non-PIE", "library", "library, tail"}:
        return
    file = tmp_path / both.old.name
    strip(both.old if strip_first else both.new, file, peers)
    if strip_first:
        add_section(file, verify=False)
    told = ask_gdb(both.shop, file)
    warning = r"warning: section \.sframe(gen\.\w+)? not found in its\.debug"
    if not strip_first:  # what objcopy makes of the tail layout's segments
        warning = "BFD: warning: its.debug has a program header with invalid alignment"
    warnings = [line for line in told if re.fullmatch(warning, line)]
    assert bool(warnings) == (strip_first or "tail" in both.shop.subject.name)
    assert [line for line in told if line not in warnings] == both.old_in_gdb


SPINNING = r"""
__attribute__((noinline)) static unsigned spin(unsigned n) { while (n--) __asm__ volatile(""); return n; }
__attribute__((noinline)) unsigned caller(unsigned n) { return spin(n) + 1; }
int main(void) { return caller(400000000) != 0; }
"""


def ask_perf(program: Path, directory: Path) -> tuple[str, list[str]]:
    """(build-id, functions with a tenth of the samples), from the program's copy in the cache of build-ids."""
    perf: list[str | Path] = ["perf", "--buildid-dir", directory / "cache"]
    data = directory / "data"
    told = subprocess.run([*perf, "buildid-list", "-i", program], check=True, capture_output=True, text=True).stdout
    done = subprocess.run([*perf, "record", "-e", "cpu-clock", "-o", data, program], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"perf may not count here: {done.stderr}")
    program.unlink()
    listed = subprocess.run([*perf, "buildid-list", "-i", data], check=True, capture_output=True, text=True).stdout
    assert f"{told.split()[0]} {program}\n" in listed
    report: list[str | Path] = ["report", "-i", data, "--stdio", "--percent-limit", "10", "--comm", program.name, "-F", "symbol"]
    shown = subprocess.run([*perf, *report], check=True, capture_output=True, text=True).stdout
    return told, [line.strip() for line in shown.splitlines() if line.strip() and not line.startswith("#")]


def test_perf_by_build_id(compile_c: Compiler, tmp_path: Path) -> None:
    if shutil.which("perf") is None:
        pytest.skip("no perf on this machine")
    original = compile_c(SPINNING, "-O1", "-g", name="spinning")
    answers = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        program = tmp_path / name / "spinning"
        shutil.copy(original, program)
        if name == "new":
            add_section(program, verify=False)
        answers.append(ask_perf(program, program.parent))
    assert answers[0] == answers[1]
    assert answers[0][1] == ["[.] spin"]


def test_addresses_to_lines(both: Both, peers: Peers) -> None:
    addresses = [f"{start:#x}" for start in read(both.new).table.start[:200]]
    for tool in ("eu-addr2line", "llvm-addr2line"):
        said = [
            subprocess.run([peers.tool(tool), "-fie", file, *addresses], check=False, capture_output=True, text=True).stdout
            for file in (both.old, both.new)
        ]
        assert said[0] == said[1]
        assert "source.c:" in said[0] or not both.shop.subject.flags
