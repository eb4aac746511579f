"""`check` reads the CFI with pyelftools, too: faults of the first reader are found, and pyelftools' own faults are known."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

import sframegen
from cfi.section import CfiSection
from sframegen.checks.check import check_file
from sframegen.checks.finding import Severity, Verdict
from sframegen.checks.second import agreement, pyelftools_cfi
from sframegen.checks.second.meaning import Agreement, compare_rule
from sframegen.checks.second.pyelftools_cfi import UNKNOWN_ROW, CfiRow, FdeColumns, RegisterRow, read_fdes
from sframegen.cli.commands import cli
from sframegen.conversion.cfi_sections import find_sources
from sframegen.elf.file import ElfFile
from sframegen.format.abi import AARCH64, AMD64, Abi
from sframegen.format.model import OUTERMOST, Rule, Where
from tests.checks.damages import Subject, rules, with_section
from tests.checks.damages.kinds import Copy
from tests.checks.damages.subject import NotHereError, NowhereError
from tests.support.inputs.cfi_programs import ARM64, source_of
from tests.support.inputs.cfi_writer import INITIAL, Frames, uleb
from tests.support.loops import for_each
from tests.support.peers import Compiler, Peers

# What compilers, assemblers and linkers write, a function each. Registers: rbp 6, rsp 7, r8 8, r10 10, r12 12, rip 16.
FUNCTIONS = {
    "usual": """
        push %rbp; .cfi_adjust_cfa_offset 8; .cfi_offset 6, -16
        mov %rsp, %rbp; .cfi_def_cfa_register 6
        nop
        pop %rbp; .cfi_restore 6; .cfi_def_cfa 7, 8
        ret""",
    "nested": """
        push %rbx; .cfi_adjust_cfa_offset 8; .cfi_remember_state
        push %rbx; .cfi_adjust_cfa_offset 8; .cfi_remember_state
        push %rbx; .cfi_adjust_cfa_offset 8
        nop; .cfi_restore_state
        nop; .cfi_restore_state
        ret""",
    "far": ".fill 300, 1, 0x90; push %rbx; .cfi_adjust_cfa_offset 8; .fill 50, 1, 0x90; pop %rbx; .cfi_adjust_cfa_offset -8; ret",
    "scaled": "push %rbx; .cfi_escape 0x13, 0x7e; nop; .cfi_escape 0x11, 6, 3; nop; ret",  # def_cfa_offset_sf, offset_extended_sf
    "outermost": ".cfi_undefined 16; nop; nop",
    "drap": "lea 8(%rsp), %r10; .cfi_def_cfa 10, 0; nop; .cfi_escape 0x0f, 3, 0x76, 0x78, 6; nop",
    "by_expression": ".cfi_escape 0x10, 6, 2, 0x76, 0x70; nop; nop",  # FP is at FP - 16
    "in_register": ".cfi_register 6, 12; nop; nop; .cfi_same_value 6; nop",
    "implied": ".cfi_escape 0x14, 7, 0; nop; nop",
    "sp_elsewhere": "nop; .cfi_register 7, 8; nop; nop",
    "fp_lost": "nop; .cfi_undefined 6; nop; nop",
    "signal": ".cfi_signal_frame; nop; nop",
    # As GNU ld describes all entries of a PLT: CFA = rsp + 8 + ((rip & 15) >= 11) * 8
    "plt": ".cfi_escape 0x0f, 11, 0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22; .fill 64, 1, 0x90",
}
SOURCE = "".join(
    f'__asm__(".balign 16\\n {name}: .cfi_startproc\\n {body.strip().replace(chr(10), ";")}\\n .cfi_endproc");\n'
    for name, body in FUNCTIONS.items()
)


class Fault(NamedTuple):
    """A place in the source of the first reader, and what stands there instead."""

    file: str
    right: str
    wrong: str


TRANSLATE = "sframegen/conversion/translate.py"
FAULTS = {
    "offsets are scaled by the wrong factor": Fault(
        "cfi/machine.py", "value *= self.data_factor * (factor - 1)", "value *= 2 * self.data_factor * (factor - 1)"
    ),
    "a long advance is cut off": Fault("cfi/machine.py", "else a) * factor", "else a & 255) * factor"),
    "a restored register keeps its rule": Fault("cfi/machine.py", "b = self.initial[current]\n", "b = state\n"),
    "a value is taken to be an address": Fault(
        "cfi/opcodes.py", '"DW_CFA_val_offset", _A.SET_RULE, _O.ULEB, _O.ULEB, _K.VAL_OFFSET, 1)',
        '"DW_CFA_val_offset", _A.SET_RULE, _O.ULEB, _O.ULEB, _K.OFFSET, 1)',
    ),
    "signal frames are not known": Fault("cfi/rules.py", 'return "S" in self.augmentation', 'return "X" in self.augmentation'),
    "registers are saved elsewhere": Fault(
        TRANSLATE, "return Where(None, rule.a, deref=True)", "return Where(None, rule.a + 8, deref=True)"
    ),
    "a lost FP is an unchanged one": Fault(
        TRANSLATE, "case RuleKind.UNSPECIFIED | RuleKind.SAME_VALUE:",
        "case RuleKind.UNSPECIFIED | RuleKind.SAME_VALUE | RuleKind.UNDEFINED:",
    ),
    "SP elsewhere is no matter": Fault(
        TRANSLATE, "sp_rule.kind is not UNSPECIFIED and not _sp_is_implied(sp_rule, cfa, abi):\n", "False:\n"
    ),
    "outermost frames are left out": Fault(
        TRANSLATE, "return why_inexpressible(OUTERMOST, self.words) or OUTERMOST", "return Reason.RA_RULE"
    ),
    "repeated rules are asked for too rarely": Fault(
        TRANSLATE, "for residue in range(PC_PERIOD):", "for residue in range(0, PC_PERIOD, 2):"
    ),
}  # fmt: skip

# Of AArch64, whose code is aligned to 4 bytes, and whose return addresses may be signed.
SIGNED = (
    "nop; .cfi_negate_ra_state; nop; .cfi_adjust_cfa_offset 16; .cfi_offset 30, -8; nop; .cfi_restore 30; nop",
    ".cfi_b_key_frame; nop; .cfi_negate_ra_state; .cfi_remember_state; nop; .cfi_negate_ra_state; nop; .cfi_restore_state; nop",
    "nop; .cfi_escape 0x16, 34, 1, 0x31; nop; .cfi_remember_state; .cfi_escape 0x16, 34, 1, 0x30; nop; .cfi_restore_state",
)
AARCH64_FAULTS = {
    "signed return addresses are not": Fault(TRANSLATE, "Rule(cfa, ra, fp, signed == 1)", "Rule(cfa, ra, fp, False)"),
    "nothing is signed": Fault("cfi/machine.py", "self.state[RA_STATE + 1] ^= 1", "self.state[RA_STATE + 1] ^= 0"),
    "RA_SIGN_STATE is not followed": Fault("cfi/machine.py", "if register == self.ra_state:", "if False:"),
    "advances are not scaled": Fault("cfi/machine.py", "(byte & 0x3F) * factor", "(byte & 0x3F) * 1"),
    "key B is not known": Fault("cfi/rules.py", 'return "B" in self.augmentation', "return False"),
}

# Run with the packages of the folder that is given, interpreted.
TRIED = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import cfi, sframegen
assert Path(cfi.__file__).parents[1] == Path(sframegen.__file__).parents[1] == Path(sys.argv[1])
sframegen.add_section(sys.argv[2], output=sys.argv[3])
reports = [sframegen.check(sys.argv[3], second_reader=second) for second in (False, True)]
print(json.dumps([[finding.rule for finding in report.findings if finding.severity] for report in reports]))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our packages, without what is compiled."""
    folder = tmp_path_factory.mktemp("sources")
    installed = Path(sframegen.__file__).parents[1]
    for name in ("cfi", "sframegen", "linker"):
        shutil.copytree(installed / name, folder / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


@pytest.fixture(scope="module")
def library(compile_c: Compiler) -> Path:
    return compile_c(SOURCE, "-shared", "-nostdlib", "-O1")


def findings(packages: Path, library: Path, output: Path, script: str = TRIED) -> tuple[set[str], set[str]]:
    """What is found without the second reader, and with it."""
    command = [sys.executable, "-c", script, packages, library, output]
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    without, with_it = json.loads(done.stdout)
    return set(without), set(with_it)


def test_sound_readers_agree(library: Path, sources: Path, tmp_path: Path) -> None:
    assert findings(sources, library, tmp_path / "out") == (set(), set())
    report = sframegen.check(tmp_path / "out", second_reader=True)
    assert report.second_reader == {"same": report.code[Verdict.EQUAL], "other": 0, "left_out": 0, "unjudged": 0}


def faulty(sources: Path, directory: Path, fault: Fault) -> Path:
    packages = Path(shutil.copytree(sources, directory / "packages"))
    text = (packages / fault.file).read_text()
    assert text.count(fault.right) == 1
    (packages / fault.file).write_text(text.replace(fault.right, fault.wrong))
    return packages


SECOND = ({"second-reader"}, {"second-reader-left-out"}, {"second-reader", "second-reader-left-out"})


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_first_reader_is_found(name: str, library: Path, sources: Path, tmp_path: Path) -> None:
    """add-section verifies what it wrote, and takes it to be good; so does a check that reads the CFI as add-section did."""
    without, with_it = findings(faulty(sources, tmp_path, FAULTS[name]), library, tmp_path / "out")
    assert without == set()
    assert with_it in SECOND


@for_each("name", AARCH64_FAULTS)
def test_a_fault_that_only_aarch64_shows_is_found(name: str, peers: Peers, sources: Path, tmp_path: Path) -> None:
    file = ARM64.link(peers, source_of([body.split("; ") for body in SIGNED]), tmp_path)
    assert findings(sources, file, tmp_path / "sound") == (set(), set())
    without, with_it = findings(faulty(sources, tmp_path, AARCH64_FAULTS[name]), file, tmp_path / "out")
    assert without == set()
    assert with_it in SECOND


def test_a_first_reader_that_calls_a_good_section_wrong_is_found(library: Path, sources: Path, tmp_path: Path) -> None:
    assert findings(sources, library, tmp_path / "out") == (set(), set())
    packages = faulty(sources, tmp_path, FAULTS["registers are saved elsewhere"])
    script = TRIED.replace("sframegen.add_section", "(lambda *_, **options: None)")
    without, with_it = findings(packages, library, tmp_path / "out", script)
    assert without == {"cfi-rule", "cfi-inexpressible"}
    assert with_it == without | {"second-reader"}


# -- what pyelftools gets wrong is put right or left unread


def functions_of(section: CfiSection, abi: Abi = AMD64) -> FdeColumns:
    functions = FdeColumns()
    for _ in read_fdes(section, 0, abi, functions):
        pass
    return functions


def frames_of(*programs: bytes, initial: bytes = INITIAL, **cie: Any) -> Frames:
    """Functions of 16 bytes from 0x1000 on, with pointers of 8 bytes."""
    frames = Frames()
    number = frames.cie(initial, augmentation="zR", data=b"\0", **cie)
    for place, program in enumerate(programs):
        frames.fde(number, frames.number(0x1000 + 16 * place, 8), frames.number(16, 8), program)
    return frames


def ranges_of(functions: FdeColumns, executable: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    return list(zip(*functions.make_track(executable), strict=True))


def rows_of(functions: FdeColumns) -> list[tuple[int, int]]:
    return list(zip(functions.row_start, functions.row_state, strict=True))


def assert_one_is_unread(frames: Frames, why: str, abi: Abi = AMD64) -> None:
    """The first function; the second one, and what code the first one is, is known."""
    functions = functions_of(frames.section(), abi)
    assert dict(functions.unread) == {why: 1}
    assert rows_of(functions)[0] == (0x1000, -1)
    assert list(functions.start) == [0x1000, 0x1010]
    assert ranges_of(functions, [(0x1000, 0x2000)]) == [(0x1000, 0x1010, UNKNOWN_ROW), (0x1010, 0x1020, 0)]


UNREAD = {
    "scales def_cfa_sf by the wrong factor": (b"\x12\x07\x7e", AMD64, pyelftools_cfi.MISREAD_OPCODES[0x12]),
    "fails on a state that was not remembered": (b"\x41\x0b", AMD64, pyelftools_cfi.DAMAGED),
    "drops a last row of nothing but an expression": (b"\x41\x0f\x02\x8f\x08", AARCH64, pyelftools_cfi.LAST_ROW),
}


@for_each(("program", "abi", "why"), UNREAD.values(), ids=UNREAD)
def test_what_pyelftools_does_wrong_is_unread(program: bytes, abi: Abi, why: str) -> None:
    initial: dict[str, Any] = {"initial": b"\x0c\x1f\0", "ra": 30} if abi is AARCH64 else {}
    assert_one_is_unread(frames_of(program, b"", **initial), why, abi)


def test_pyelftools_takes_the_pointer_of_set_loc_to_be_plain() -> None:
    frames = Frames()
    cie = frames.cie(INITIAL, augmentation="zR", data=b"\x0b")  # sdata4
    for start, program in ((0x1000, b"\x01\x08\x10\0\0\x0e\x10\0\0\0\0"), (0x1010, b"")):
        frames.fde(cie, frames.number(start, 4), frames.number(16, 4), program)
    assert_one_is_unread(frames, pyelftools_cfi.MISREAD_OPCODES[0x01])


def test_pyelftools_fails_on_gnu_args_size_which_says_nothing() -> None:
    functions = functions_of(frames_of(b"\x41\x2e\x10\x0e\x20", b"\x41\x0e\x20").section())
    assert not functions.unread
    assert rows_of(functions) == [(0x1000, 0), (0x1001, 1), (0x1010, 0), (0x1011, 1)]


def test_pyelftools_ignores_signed_return_addresses() -> None:
    frames = frames_of(b"\x41\x2d\x41\x0a\x2d\x41\x0b\x41", b"", initial=b"\x0c\x1f\0", ra=30)
    functions = functions_of(frames.section(), AARCH64)
    states = list(functions.states)
    assert [(at, states[state].signed) for at, state in rows_of(functions)][:5] == [
        (0x1000, False), (0x1001, True), (0x1002, False), (0x1003, True), (0x1004, True)
    ]  # fmt: skip


@for_each("after", [b"\x0d\x06", b"\x0e\x18", b"\x13\x7d"], ids=["def_cfa_register", "def_cfa_offset", "def_cfa_offset_sf"])
def test_pyelftools_forgets_half_of_the_cfa_at_an_expression(after: bytes) -> None:
    """readelf and sframegen go back to it, as in libgcrypt 1.12."""
    frames = frames_of(b"\x41\x0f\x02\x77\x08\x41" + after + b"\x41\x0c\x07\x08", b"")
    functions = functions_of(frames.section())
    assert dict(functions.unread) == {pyelftools_cfi.CFA_LOST: 1}
    assert [at for at, state in rows_of(functions) if state < 0] == [0x1002]
    assert [at for at, _ in rows_of(functions)] == [0x1000, 0x1001, 0x1002, 0x1003, 0x1010]


def test_pyelftools_drops_an_expression_at_the_end_of_a_cie_and_does_not_find_the_cie_of_64_bit_dwarf() -> None:
    frames = frames_of(b"\x41\x0d\x06", initial=b"\x0c\x1f\x10\x0f\x02\x8f\x08", ra=30)
    functions = functions_of(frames.section(), AARCH64)
    assert (dict(functions.unread), len(functions.start)) == ({pyelftools_cfi.LAST_ROW: 1}, 0)
    frames = Frames(dwarf64=True)
    frames.plain_fde(frames.cie(), 0x1000, 16)
    functions = functions_of(frames.section())
    assert (dict(functions.unread), len(functions.start)) == ({pyelftools_cfi.WIDE_FORMAT: 1}, 0)


def test_one_entry_that_pyelftools_cannot_read_costs_no_other() -> None:
    frames = frames_of(b"\x2f\x06\x02", b"")  # DW_CFA_GNU_negative_offset_extended
    functions = functions_of(frames.section())
    assert dict(functions.unread) == {pyelftools_cfi.DAMAGED: 1}
    assert list(functions.start) == [0x1010]


# -- hostile files


def counted(work: Callable[[], object]) -> int:
    """Calls of Python and C functions."""
    calls = 0

    def call(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(call)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def many_cies(count: int) -> Frames:
    frames = frames_of(b"", b"\x2f")
    for _ in range(count):
        frames.cie(INITIAL + b"\x0a" * 400)
    return frames


COSTLY: dict[str, Callable[[int], Frames]] = {
    "expressions as long as all that follows them": lambda count: frames_of(*[b"\x0f" + uleb(40 * count)] * count),
    "a row for each of many registers, with all those before it": lambda count: frames_of(
        b"".join(b"\x05" + uleb(200 + n) + b"\x01\x41" for n in range(8 * count)), b""
    ),
    "many states": lambda count: frames_of(b"\x10\x06" + uleb(count) + b"\x96" * count + b"\x0a" * count, b""),
    "one long entry": lambda count: frames_of(b"\x41" * (200 * count), b"\x2f"),
    "many CIEs, all but the first of no use": many_cies,
    "a CIE that fails at its end, for many functions": lambda count: frames_of(
        *[b""] * count, initial=b"\0" * (8 * count) + b"\x3f"
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", COSTLY)
def test_work_is_linear_in_what_is_read(name: str) -> None:
    small, large = (COSTLY[name](count).section() for count in (50, 200))
    functions = functions_of(large)
    assert functions.unread
    assert counted(lambda: functions_of(large)) <= 4 * 1.3 * counted(lambda: functions_of(small))
    assert counted(lambda: functions_of(large)) <= 100 * len(large.data)


@for_each(("limit", "value"), [("MAX_CIE_BYTES", 16), ("MAX_ENTRY_BYTES", 40), ("MAX_STEPS", 1)])
def test_memory_and_work_of_one_file_are_limited(limit: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    section = frames_of(b"", b"\x41" * 40).section()
    assert not functions_of(section).unread
    monkeypatch.setattr(pyelftools_cfi, limit, value)
    assert functions_of(section).unread


def test_rows_that_depend_on_the_pc_are_run_only_if_they_are_few(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sframegen.add_section(library, output=tmp_path / "out")
    monkeypatch.setattr(agreement, "MAX_PC_ROWS", 0)
    assert sframegen.check(tmp_path / "out", second_reader=True).second_reader["unjudged"] == 64


@pytest.mark.dear
def test_damaged_cfi_is_read_without_an_error(library: Path) -> None:
    elf = ElfFile(memoryview(library.read_bytes()))
    [section] = find_sources(elf).sections
    random = Random(1)
    read_at_all = 0
    for _ in range(400):
        data = bytearray(section.data)
        for _ in range(random.choice((1, 2, 8))):
            data[random.randrange(len(data))] = random.choice((0, 0xFF, 0x7F, random.randrange(256)))
        functions = functions_of(section._replace(data=bytes(data[: random.choice((len(data), random.randrange(len(data))))])))
        spans = ranges_of(functions, elf.executable_ranges())
        assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert all(start < end for start, end, _ in spans)
        read_at_all += bool(spans)
    assert read_at_all > 200


# -- what rules come to


CFA_16, RA_SAVED = RegisterRow("CFA", 7, 16), RegisterRow("OFFSET", -8)
ROW = CfiRow(16, CFA_16, RA_SAVED, RegisterRow(""), RegisterRow(""), False, False, False)
RA = Where(None, -8, deref=True)
ENTRY = Rule(Where(7, 16), RA)


@for_each(
    ("row", "rule", "expected"),
    [
        (ROW, ENTRY, Agreement.SAME),
        (ROW, Rule(Where(7, 24), RA), Agreement.OTHER),
        (ROW, Rule(Where(6, 16), RA), Agreement.OTHER),
        (ROW, Rule(Where(7, 16, deref=True), RA), Agreement.OTHER),
        (ROW, Rule(Where(7, 16), Where(7, 8, deref=True)), Agreement.SAME),  # the same place in other words
        (ROW, Rule(Where(7, 16), Where(None, -8)), Agreement.OTHER),
        (ROW, ENTRY._replace(fp=Where(None, -16, deref=True)), Agreement.OTHER),
        (ROW, ENTRY._replace(fp=Where(6, 0)), Agreement.SAME),
        (ROW, ENTRY._replace(ra_signed=True), Agreement.OTHER),
        (ROW, OUTERMOST, Agreement.OTHER),
        (ROW._replace(ra=RegisterRow("UNDEFINED")), OUTERMOST, Agreement.SAME),
        (ROW._replace(ra=RegisterRow("UNDEFINED")), ENTRY, Agreement.OTHER),
        (ROW._replace(fp=RegisterRow("UNDEFINED")), ENTRY, Agreement.OTHER),
        (ROW._replace(sp=RegisterRow("REGISTER", 8)), ENTRY, Agreement.OTHER),
        (ROW._replace(sp=RegisterRow("VAL_OFFSET", 0)), ENTRY, Agreement.SAME),
        (ROW._replace(ra_column=17), ENTRY, Agreement.OTHER),
        (ROW._replace(cfa=RegisterRow("VAL_EXPRESSION", code=b"\x77\x10")), ENTRY, Agreement.SAME),
        (ROW._replace(cfa=RegisterRow("VAL_EXPRESSION", code=b"\x77\x0f\x31\x22")), ENTRY, Agreement.SAME),
        (ROW._replace(cfa=RegisterRow("VAL_EXPRESSION", code=b"\x77\x10\x06")), ENTRY, Agreement.OTHER),
        (ROW._replace(cfa=RegisterRow("VAL_EXPRESSION", code=b"\x77\x10\x28\0\0")), ENTRY, Agreement.UNJUDGED),  # DW_OP_bra
        (ROW._replace(cfa=RegisterRow("VAL_EXPRESSION", code=b"\x22")), ENTRY, Agreement.UNJUDGED),
        (ROW._replace(cfa=RegisterRow("CFA", 7, 1 << 32)), ENTRY, Agreement.UNJUDGED),
    ],
)
def test_a_rule_is_the_row_if_it_comes_to_the_same(row: CfiRow, rule: Rule, expected: Agreement) -> None:
    assert compare_rule(row, rule, AMD64, 0) is expected


def test_code_that_several_fdes_describe_differently_is_not_judged() -> None:
    frames = Frames()
    cie = frames.cie(INITIAL, augmentation="zR", data=b"\0")
    for start, size, program in ((0, 16, b""), (0, 16, b""), (32, 16, b""), (40, 16, b""), (64, 8, b"\x0e\x10")):
        frames.fde(cie, frames.number(0x1000 + start, 8), frames.number(size, 8), program)
    found = ranges_of(functions_of(frames.section()), [(0x1000, 0x1046)])
    assert found == [(0x1000, 0x1010, 0), (0x1020, 0x1038, UNKNOWN_ROW), (0x1040, 0x1046, 1)]


# -- the command, and from Python


def test_damage_that_both_readers_see_is_one_finding(library: Path) -> None:
    subject = Subject("library", with_section(library, "none", 3))
    random, seen = Random(1), 0
    for damage in rules.KINDS.all:
        copy = Copy(subject)
        try:
            damage.do(copy, random)
            report = check_file(ElfFile(memoryview(bytes(copy.file()))), second_reader=True)
        except (NotHereError, NowhereError):
            continue
        assert report.second_reader["other"] == report.code[Verdict.WRONG] > 0
        assert not {finding.rule for finding in report.findings} & {"second-reader", "second-reader-left-out"}
        seen += 1
    assert seen > 10


def test_the_cfi_is_read_twice_only_if_asked_for(library: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sframegen.add_section(library, output=out)
    report = sframegen.check(out)
    assert report.second_reader == {}
    assert "by pyelftools" not in report.one_line()
    calls: list[tuple[int, int]] = []
    report = sframegen.check(out, second_reader=True, progress=lambda done, total: calls.append((done, total)))
    assert report.second_reader["same"] > 0
    assert calls == sorted(calls)
    [total] = {total for _, total in calls}
    assert total - 4 <= calls[-1][0] <= total  # a terminator may follow
    printed = CliRunner().invoke(cli, ["check", "--second-reader", str(out)]).stdout
    assert printed.endswith(", confirmed by pyelftools\n")
    assert "by pyelftools" not in CliRunner().invoke(cli, ["check", str(out)]).stdout


def test_other_readers_are_imported_only_where_they_are_used(library: Path, tmp_path: Path) -> None:
    sframegen.add_section(library, output=tmp_path / "out")
    script = (
        "import sys, sframegen; sframegen.check(sys.argv[1], second_reader=sys.argv[2] == 'yes');"
        "print(*({'elftools', 'capstone'} & set(sys.modules)))"
    )
    for answer, expected in (("no", "\n"), ("yes", "elftools\n")):
        done = subprocess.run([sys.executable, "-c", script, tmp_path / "out", answer], check=True, capture_output=True, text=True)
        assert done.stdout == expected


def test_what_is_not_judged_is_a_note(compile_c: Compiler, tmp_path: Path) -> None:
    file = compile_c(
        '__asm__("f: .cfi_startproc\\n nop\\n .cfi_escape 0x12, 7, 0x7e\\n nop\\n .cfi_endproc");', "-shared", "-nostdlib"
    )
    sframegen.add_section(file, output=tmp_path / "out")
    report = sframegen.check(tmp_path / "out", second_reader=True)
    assert report.second_reader == {"same": 0, "other": 0, "left_out": 0, "unjudged": 2}
    [note] = [finding for finding in report.findings if finding.rule == "second-reader-unjudged"]
    assert (note.severity, note.message.partition(";")[2]) == (Severity.NOTE, f" 1 FDE: {pyelftools_cfi.MISREAD_OPCODES[0x12]}")
