"""What is done with one file, and what must be true of it.

add-section, as users call it, works on a copy. It gives a section, or says in one line why not and changes nothing. With the
section: every loaded byte is what and where it was, except what may move; GNU readelf and libsframe read the rules that the CFI
says (of some files); check finds nothing; a second add-section changes nothing; remove gives the copy back, byte for byte, which
then behaves as it did with the section.
"""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from click.testing import CliRunner

from sframegen.cli.commands import cli
from tests.support.loaded import Image, check_displaced_metadata, check_headers, check_loaded_bytes
from tests.support.oracles.compare import Verdict, compare
from tests.support.oracles.rules import OracleError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from corpus.run.behaviour import Behaviour
    from tests.support.peers import Peers

OF_THE_FILE = {"kernel-one-text"}  # several executable segments: the Linux kernel takes no section of such a program

NUMBER = re.compile(r"\b(?:0x[0-9a-f]+|\d[\d,]{2,})\b")


for module in (
    "linker.inject.verify",
    "sframegen.cli.add_section",
    "sframegen.cli.check",
    "sframegen.cli.remove",
):  # once, not in the process of each file
    import_module(module)


@dataclass
class Result:
    """Sizes and code in bytes."""

    file: str
    size: int
    outcome: str = ""  # added, nothing to add, refused, crashed
    reason: str = ""  # of the latter three
    differences: list[str] = field(default_factory=list)  # what may not be
    seconds: float = 0.0  # add-section with verification
    size_after: int = 0
    section_bytes: int = 0
    code_bytes: int = 0
    covered_bytes: int = 0
    judged: str = ""  # equal, wrong, or why the judges could not read it
    statuses: dict[str, int] = field(default_factory=dict)  # by check of its behaviour
    unsteady: list[str] = field(default_factory=list)  # checks of which no two runs are the same, with or without the section


class Done(NamedTuple):
    status: int
    output: str
    errors: str
    crash: str  # what it died of, in one line


def command(*arguments: str | Path) -> Done:
    """The command line in this process."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="sframegen")
    crash = "" if isinstance(result.exception, SystemExit | None) else last_line(result.exception)
    return Done(result.exit_code, result.stdout, result.stderr.strip(), crash)


def last_line(error: BaseException) -> str:
    """Where an exception was raised, and what it says."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {frame.name}: {error or frame.line}"


class Examiner:
    def __init__(self, behaviour: Behaviour, peers: Peers) -> None:
        self.behaviour = behaviour
        self.peers = peers

    def examine(self, file: Path, scratch: Path, *, judge: bool) -> Result:
        """`scratch`: an empty folder. Whoever calls this reckons with the end of the process: LIEF is not Python."""
        result = Result(str(file), file.stat().st_size)
        self.try_all(result, file, scratch, judge=judge)
        result.differences = [difference.replace(f"{scratch}/", "") for difference in result.differences]
        return result

    def try_all(self, result: Result, file: Path, scratch: Path, *, judge: bool) -> None:
        empty, copy = scratch / "empty", scratch / "copy" / file.name
        for directory in (empty, copy.parent):
            directory.mkdir()
        shutil.copyfile(file, copy)
        copy.chmod(0o755)
        started = monotonic()
        done = command("add-section", "--json", copy)
        result.seconds = monotonic() - started
        result.size_after = copy.stat().st_size
        if done.crash:
            result.outcome = "crashed"
            result.differences.append(done.crash)
        elif done.status:
            refused(result, done, copy)
        else:
            [summary] = json.loads(done.output)
            for name in ("section_bytes", "code_bytes", "covered_bytes"):
                setattr(result, name, summary[name])
            result.outcome, result.reason = (
                ("added", "") if result.section_bytes else ("nothing to add", summary["note"].removeprefix("nothing to add: "))
            )
        if result.outcome != "added":
            if not filecmp.cmp(file, copy, shallow=False):
                result.differences.append("nothing was added, but the file is not as it was")
            return

        attempt(result, "loaded bytes", lambda: check_image(file, copy))
        attempt(result, "check", lambda: check_section(copy))
        if judge:
            attempt(result, "rules", lambda: self.check_rules(result, file, copy))
        after = self.behaviour.of(copy, file, empty)
        attempt(result, "second add-section", lambda: check_second(copy, scratch / "once"))
        attempt(result, "remove", lambda: check_restored(file, copy))
        shutil.copyfile(file, copy)
        compare_behaviour(result, after, lambda: self.behaviour.of(copy, file, empty))

    def check_rules(self, result: Result, file: Path, copy: Path) -> None:
        try:
            report = compare(file, copy, self.peers)
        except OracleError as error:
            result.judged = str(error).replace(f"{copy}", "FILE").replace(f"{file}", "FILE")
            return
        result.judged = "equal" if report.ok else "wrong"
        assert report.ok, report.differences[0]
        assert report.bytes[Verdict.EQUAL] == result.covered_bytes, "as many bytes covered as the judges count"


def check_section(copy: Path) -> None:
    """`check` finds nothing, not even a warning, for any consumer, but what is the file's own and not the section's."""
    done = command("check", "--json", copy)
    assert not done.crash, done.crash
    found = [finding for finding in json.loads(done.output)[0]["findings"] if finding["severity"] != "note"]
    assert [finding for finding in found if finding["rule"] not in OF_THE_FILE] == []


def refused(result: Result, done: Done, copy: Path) -> None:
    start = f"sframegen: {copy}: "
    lines = done.errors.splitlines()
    result.outcome = "refused"
    if done.status == 1 and len(lines) == 1 and lines[0].startswith(start):
        result.reason = NUMBER.sub("N", lines[0].removeprefix(start))
    else:
        result.differences.append(f"refused with exit status {done.status} and not one clear line: {done.errors[:500]}")


def compare_behaviour(result: Result, after: dict[str, Any], again: Callable[[], dict[str, Any]]) -> None:
    """`after`: with the section; `again` runs the file as it is without."""
    before = again()
    result.statuses = {check: outcome.status for check, outcome in before.items()}
    different = [check for check in before | after if before.get(check) != after.get(check)]
    if not different:
        return
    once_more = again()
    for check in different:
        if before.get(check) != once_more.get(check):
            result.unsteady.append(check)
        else:
            result.differences.append(f"{check}: {before.get(check)}, with the section {after.get(check)}"[:500])


def attempt(result: Result, what: str, check: Callable[[], None]) -> None:
    try:
        check()
    except Exception as error:  # noqa: BLE001 - of a check that cannot read what was written, too
        result.differences.append(f"{what}: {last_line(error)}")


def check_image(file: Path, copy: Path) -> None:
    with ExitStack() as closing:
        images = Image(file, closing), Image(copy, closing)
        for check in (check_loaded_bytes, check_displaced_metadata, check_headers):
            check(*images)


def check_second(copy: Path, once: Path) -> None:
    shutil.copyfile(copy, once)
    done = command("add-section", copy)
    assert (done.status, done.crash) == (0, ""), done.errors + done.crash
    assert filecmp.cmp(once, copy, shallow=False), "another file than after the first"


def check_restored(file: Path, copy: Path) -> None:
    done = command("remove", copy)
    assert (done.status, done.crash) == (0, ""), done.errors + done.crash
    assert filecmp.cmp(file, copy, shallow=False), "not the file that add-section was given"
