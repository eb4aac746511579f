"""One job: a tool on a file, without our section, before add-section, and after it."""

from __future__ import annotations

import filecmp
import json
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from corpus.run.examine import command
from corpus.tools.section_facts import Facts, facts_of, same_rules
from corpus.tools.subjects import PROGRAMS
from sframegen import FormatError

if TYPE_CHECKING:
    from corpus.run.behaviour import Outcome
    from corpus.tools.invocations import Row
    from corpus.tools.subjects import Subject

SECONDS_OF_TOOL = 60
PLACES = ("build_id_in_first_page", "interpreter_before_loads", "headers_where_kernels_before_5_18_look")
AFTER, BEFORE = "add-section, tool", "tool, add-section"
WORKS, NO_BETTER, BREAKS, REFUSED, TOOL_REFUSES, LOST = "works", "no better", "BREAKS", "refused", "tool refuses", "section lost"


@dataclass
class Verdict:
    """The result for one order. The program may work and still have `faults`."""

    order: str
    mark: str = WORKS
    why: str = ""
    faults: list[str] = field(default_factory=list)


class Given(NamedTuple):
    """A subject with a section, and what is true of it before any tool."""

    subject: Subject
    with_section: Path
    facts: Facts
    answer: Outcome
    is_good: bool  # for check


class ToolError(Exception):
    """What the tool said."""


def given(subject: Subject, folder: Path) -> Given | str:
    """A reason where it cannot be tried."""
    file = folder / subject.file.name
    shutil.copyfile(subject.file, file)
    answers = [subject.answer(file, empty(folder / "1")), subject.answer(file, empty(folder / "2"))]
    if answers[0] != answers[1] or answers[0].status != 0:
        return f"no answer that could be compared: {said(answers[0])}"
    facts = facts_of(file)
    done = command("add-section", "--json", file)
    if done.status or done.crash:
        return f"add-section refuses it: {reason(done.errors + done.crash, file)}"
    [summary] = json.loads(done.output)
    if not summary["section_bytes"]:
        return f"nothing to add: {summary['note']}"
    if (answer := subject.answer(file, empty(folder / "3"))) != answers[0]:
        return f"BREAKS without any tool: {said(answer)}"
    return Given(subject, file, facts, answers[0], command("check", file).status == 0)


class Baseline(NamedTuple):
    """What the tool makes of the file without our section."""

    file: Path
    refusal: str  # of the tool
    wrong: str  # what it answers, if that is not what it answered before

    @property
    def is_bad(self) -> bool:
        return bool(self.refusal or self.wrong)


def tried(start: Given, row: Row, folder: Path) -> list[Verdict]:
    """One verdict of each order; only of the first where the tool refuses the file anyway."""
    baseline = baseline_of(start, row, folder)
    first = Verdict(AFTER)
    after(first, start, row, folder, baseline)
    if baseline.refusal:
        return [first]
    second = Verdict(BEFORE)
    before(second, start, folder, baseline)
    return [first, second]


def baseline_of(start: Given, row: Row, folder: Path) -> Baseline:
    file = folder / "baseline" / start.subject.file.name
    try:
        apply(row, start.subject.file, file)
    except ToolError as error:
        return Baseline(file, str(error), "")
    answer = start.subject.answer(file, empty(folder / "run"))
    return Baseline(file, "", said(answer) if answer != start.answer else "")


def after(verdict: Verdict, start: Given, row: Row, folder: Path, baseline: Baseline) -> None:
    """add-section, then the tool."""
    file = folder / "after" / baseline.file.name
    try:
        apply(row, start.with_section, file)
    except ToolError as error:
        verdict.mark, verdict.why = NO_BETTER if baseline.refusal else TOOL_REFUSES, str(error)
    else:
        judge(verdict, start, file, folder, baseline)


def before(verdict: Verdict, start: Given, folder: Path, baseline: Baseline) -> None:
    """add-section on what the tool wrote; remove must then give that back."""
    file = folder / "before" / baseline.file.name
    file.parent.mkdir()
    shutil.copyfile(baseline.file, file)
    done = command("add-section", "--json", file)
    if done.crash:
        verdict.faults.append(f"add-section: {done.crash}")
    if done.status or done.crash:
        verdict.mark, verdict.why = NO_BETTER if baseline.wrong else REFUSED, reason(done.errors + done.crash, file)
    elif not json.loads(done.output)[0]["section_bytes"]:
        verdict.mark, verdict.why = LOST, json.loads(done.output)[0]["note"]
    else:
        judge(verdict, start, file, folder, baseline)
    if not filecmp.cmp(file, baseline.file, shallow=False):
        verdict.faults.append(
            "remove does not give back what the tool wrote" if verdict.mark != REFUSED else "refused, but changed"
        )


def judge(verdict: Verdict, start: Given, file: Path, folder: Path, baseline: Baseline) -> None:
    """Run the file, compare it with `baseline`, ask check, and remove the section."""
    answer = start.subject.answer(file, empty(folder / "run"))
    wrong = said(answer) if answer != start.answer else ""
    if wrong:
        verdict.mark, verdict.why = NO_BETTER if baseline.is_bad else BREAKS, wrong
    if verdict.mark != NO_BETTER:
        differing = compare_facts(verdict, start, file, baseline)
        if verdict.mark == LOST:
            return
        check(verdict, start, file, good=not wrong and not differing)
    done = command("remove", file)
    if verdict.mark == NO_BETTER:
        return
    if done.status or done.crash:
        verdict.faults.append(f"remove refuses: {reason(done.errors + done.crash, file)}")
    elif not wrong and (answer := start.subject.answer(file, empty(folder / "run"))) != start.answer:
        verdict.faults.append(f"after remove: {said(answer)}")


def compare_facts(verdict: Verdict, start: Given, file: Path, baseline: Baseline) -> str:
    """What differs from the rules before, if anything does; other faults are noted."""
    try:
        facts = facts_of(file)
        expected = start.facts if baseline.is_bad else facts_of(baseline.file)
    except FormatError as error:
        verdict.faults.append(f"not read: {error}")
        return str(error)
    for name in PLACES:
        if getattr(expected, name) and not getattr(facts, name):
            verdict.faults.append(f"not so any more: {name.replace('_', ' ')}")
    recomputed = expected.build_id != start.facts.build_id  # by debugedit, from the contents
    if bool(facts.build_id) != bool(expected.build_id) if recomputed else facts.build_id != expected.build_id:
        verdict.faults.append("another build-id, or none")
    if not facts.has_section:
        verdict.mark = LOST if verdict.mark == WORKS else verdict.mark
        return "no section"
    try:
        differing = same_rules(start.with_section, file)
    except FormatError as error:
        differing = str(error)
    if differing:
        verdict.faults.append(f"rules: {differing}")
    return differing


def check(verdict: Verdict, start: Given, file: Path, *, good: bool) -> None:
    done = command("check", "--json", file)
    if done.crash:
        verdict.faults.append(f"check: {done.crash}")
        return
    found = ""
    if done.status and done.output.startswith("["):
        [report] = json.loads(done.output)
        found = "; ".join(f"{f['rule']}: {f['message']}" for f in report.get("findings", ()) if f["severity"] == "error")
    if done.status and good and start.is_good:
        verdict.faults.append(f"check finds an error where all is well: {found or reason(done.errors, file)}"[:300])
    if not done.status and not good:
        verdict.faults.append("check finds nothing")


def apply(row: Row, source: Path, target: Path) -> None:
    target.parent.mkdir()
    words = {"in": source, "out": target, "sources": PROGRAMS, "interpreter": link(target.parent, "ld", INTERPRETER)}
    for step in row.invocation.steps:
        name, *arguments = (word.format(**words) for word in step.split())
        line = [*row.provider.commands.get(name, (name,)), *arguments]
        try:
            done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False, timeout=SECONDS_OF_TOOL)
        except subprocess.TimeoutExpired:
            raise ToolError(f"{name}: not done in {SECONDS_OF_TOOL} s") from None
        if done.returncode:
            raise ToolError(f"{name}: {done.returncode} {shortened(done.stdout + done.stderr, target)}")
    if row.invocation.leaves.encode() not in target.read_bytes():
        raise ToolError(f"{row.invocation.leaves} is not there")


INTERPRETER = Path("/lib64/ld-linux-x86-64.so.2")


def link(folder: Path, name: str, to: Path) -> Path:
    path = folder / name
    path.symlink_to(to)
    return path


def empty(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def said(answer: Outcome) -> str:
    return f"exit status {answer.status}, {shortened(answer.output.decode(errors='replace'))!r}"


def reason(text: str, file: Path) -> str:
    return shortened(text.removeprefix(f"sframegen: {file}: "), file)


def shortened(text: str, target: Path = Path("/")) -> str:
    text = text.replace(str(target), "FILE").replace(str(target.parent) + "/", "") if target != Path("/") else text
    return " / ".join(line.strip() for line in text.splitlines() if line.strip())[:200]
