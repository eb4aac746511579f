"""corpus/tools sees what a tool breaks, and what check does not say of it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

from corpus.run.examine import command as command_line
from corpus.tools.invocations import Invocation, Row, rows
from corpus.tools.obtaining import Provider, upstream
from corpus.tools.subjects import Subject, kind_of
from corpus.tools.tools_report import Result, markdown
from corpus.tools.trial import AFTER, BEFORE, BREAKS, LOST, NO_BETTER, REFUSED, TOOL_REFUSES, WORKS, Given, given, tried

if TYPE_CHECKING:
    from pathlib import Path

    from corpus.run.examine import Done
    from tests.support.peers import Compiler

pytestmark = pytest.mark.once

PROGRAM = '#include <stdio.h>\nint main(void) { return puts("hello") < 0; }\n'
LIBRARY = "int hello(void) { return 42; }\n"
USER = '#include <stdio.h>\nint hello(void);\nint main(void) { return printf("%d\\n", hello()) < 0; }\n'

# Tools that copy a file, and change something in it.
COPY = """
import sys
from dataclasses import asdict
from pathlib import Path
from sframegen.elf.file import open_elf
from sframegen.elf.records import PT_GNU_SFRAME
source, target = map(Path, sys.argv[1:])
elf, data = open_elf(source), bytearray(source.read_bytes())
sections = [(elf.header.e_phoff + 56 * number, s) for number, s in enumerate(elf.segments) if s.p_type == PT_GNU_SFRAME]
load = elf.executable_loads()[0]
"""
ENTRY = "data[elf.header.e_entry - load.p_vaddr + load.p_offset] = 0xF4  # hlt\n"
CHANGES = {
    "nothing": "",
    "the entry": ENTRY,
    "the entry, with a section": "if sections: " + ENTRY,
    "the section": "for _, s in sections: data[s.p_offset + 4 : s.p_offset + s.p_filesz] = bytes(s.p_filesz - 4)\n",
    "the segment": "for at, _ in sections: data[at : at + 4] = bytes(4)  # PT_NULL\n",
    "refuses sections": "if sections: sys.exit('a segment that I do not know')\n",
    "a payload": "data += b'payload'\n",
}
WRITE = "target.write_bytes(data)\n"


def made(change: str) -> Row:
    tool = Provider("here", {"tool": (sys.executable, "-P", "-c", COPY + CHANGES[change] + WRITE)}, {"tool": "1"})
    return Row(Invocation(change, ("tool {in} {out}",)), tool)


@pytest.fixture
def start(compile_c: Compiler, tmp_path: Path) -> Given:
    file = compile_c(PROGRAM, "-O1")
    return ready(Subject("hello", kind_of(file, is_library=False), file, ("{file}",), {}), tmp_path / "given")


def ready(subject: Subject, folder: Path) -> Given:
    folder.mkdir()
    found = given(subject, folder)
    assert isinstance(found, Given), found
    return found


@pytest.mark.parametrize(
    ("change", "first", "second"),
    [
        ("nothing", (WORKS, []), (WORKS, [])),
        ("the entry", (NO_BETTER, []), (NO_BETTER, [])),
        ("the entry, with a section", (BREAKS, ["check finds nothing"]), (WORKS, [])),
        ("the section", (WORKS, ["rules"]), (WORKS, [])),
        ("the segment", (LOST, []), (WORKS, [])),
        ("refuses sections", (TOOL_REFUSES, []), (WORKS, [])),
        ("a payload", (WORKS, []), (REFUSED, [])),
    ],
)
def test_verdicts(start: Given, tmp_path: Path, change: str, first: object, second: object) -> None:
    verdicts = tried(start, made(change), tmp_path)
    assert [v.order for v in verdicts] == [AFTER, BEFORE]
    assert [(v.mark, [fault.partition(":")[0] for fault in v.faults]) for v in verdicts] == [first, second], verdicts


def test_a_library_is_tried_with_its_user(compile_c: Compiler, tmp_path: Path) -> None:
    library = compile_c(LIBRARY, "-O1", "-shared", "-fPIC", "-Wl,-soname,libhello.so", name="libhello.so")
    user = compile_c(USER, f"-L{library.parent}", "-lhello")
    subject = Subject("libhello.so", "library", library, (str(user),), {"LD_LIBRARY_PATH": "{folder}"})
    start = ready(subject, tmp_path / "given")
    assert start.answer.output == b"42\n"
    assert [v.mark for v in tried(start, made("nothing"), tmp_path)] == [WORKS, WORKS]


def test_a_check_that_finds_faults_everywhere_is_seen(start: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = command_line

    def command(*arguments: str | Path) -> Done:
        done = honest(*arguments)
        return done._replace(status=1, output="", errors="an error") if arguments[0] == "check" else done

    monkeypatch.setattr("corpus.tools.trial.command", command)
    for verdict in tried(start, made("nothing"), tmp_path):
        assert verdict.faults == ["check finds an error where all is well: an error"]


def test_what_cannot_be_tried(compile_c: Compiler, tmp_path: Path) -> None:
    failing = compile_c("int main(void) { return 3; }", "-O1")
    reason = given(Subject("failing", "PIE", failing, ("{file}",), {}), tmp_path)
    assert reason == "no answer that could be compared: exit status 3, ''"


def test_the_report_counts_and_names_each_fault(start: Given, tmp_path: Path) -> None:
    found = []
    for number, change in enumerate(("nothing", "the entry, with a section", "a payload")):
        folder = tmp_path / str(number)
        folder.mkdir()
        row = made(change)
        found += [Result("hello", "PIE", row.tools, change, **asdict(verdict)) for verdict in tried(start, row, folder)]
    assert [result.is_fault for result in found] == [False, False, True, False, False, True]
    text = markdown(found, {"other": "no answer"}, "3 jobs.")
    assert "| tool 1 | the entry, with a section | - | 1 BREAKS with a fault |" in text
    assert "- tool 1: a payload; `PIE: hello`" in text
    assert "- other: no answer" in text


def test_rows_of_providers() -> None:
    versions = {"a": "2.40", "b": "2.40", "c": "2.44"}
    providers = [Provider(name, {"strip": ("strip",)}, {"strip": version}) for name, version in versions.items()]
    assert [row.name for row in rows(providers)][:2] == ["strip 2.40: strip", "strip 2.44: strip"]


def test_upstream() -> None:
    versions = ("0.14.3-1+b1", "1:14.0.6-12", "0+git20240221+ds-5", "2.40")
    assert [upstream(version) for version in versions] == ["0.14.3", "14.0.6", "0+git20240221", "2.40"]
