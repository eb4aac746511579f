"""One workload in one mode: stopped many times, and each time looked at by both tracers."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen.elf.file import open_elf
from sframegen.stack.live.process import Process
from sframegen.stack.snapshot import StackError
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.frames import COMPLETE, RuleSource

from .code import Code
from .compare import Stack, compare
from .debugger import Gdb, GdbError
from .target import EndedError, Target

if TYPE_CHECKING:
    from .copies import Copies
    from .workloads import Workload

RETURNS = (b"\xc3", b"\xf3\xc3", b"\xf2\xc3")
ET_DYN = 3
TRIES = 20  # at stops of a process that ends at once


class Mode(NamedTuple):
    name: str
    convert: bool  # what has no section gets one in memory
    copies: Copies | None  # that run in the place of the originals


@dataclass
class Row:
    """What came of it: counts, and by reason where the two saw a stack differently."""

    workload: str
    mode: str
    stops: int = 0
    threads: int = 0
    frames: int = 0  # whose PCs are equal
    cfas: int = 0  # of these, whose CFAs are known to both, and equal
    equal: int = 0  # threads, from the innermost frame to the last
    reasons: Counter[str] = field(default_factory=Counter)
    how: Counter[str] = field(default_factory=Counter)
    places: Counter[str] = field(default_factory=Counter)  # where threads were
    differences: list[str] = field(default_factory=list)
    left_alone: set[str] = field(default_factory=set)  # objects that were loaded and had no section


class Stopper:
    """Traces a workload at `stops` moments of it; it is started again when it ends."""

    def __init__(self, workload: Workload, mode: Mode, folder: Path, seed: int) -> None:
        self.workload, self.mode, self.folder = workload, mode, folder
        self.random = random.Random(f"{seed} {workload.name} {mode.name}")  # noqa: S311 - moments, not secrets
        self.row = Row(workload.name, mode.name)
        self.replaced: dict[Path, Path] = {}

    def run(self, gdb: Gdb, stops: int) -> Row:
        failed = 0
        while self.row.stops < stops and failed < TRIES:
            before = self.row.stops
            target, program = self._start()
            try:
                target.wait_for(program)
                self._watch(target, program, gdb, stops)
            except EndedError:
                failed = 0 if self.row.stops > before else failed + 1
            finally:
                target.end()
        if failed:
            self.row.differences.append(f"could not be run: it ended {failed} times before it was stopped")
        return self.row

    def _start(self) -> tuple[Target, Path]:
        command = self.workload.command(self.folder, self.random)
        program = Path(command[0])
        if self.mode.copies:
            self.replaced = self.mode.copies.of(program, self.workload.loads(self.folder))
            command = [*self.mode.copies.command(self.replaced, command)]
        return Target(command, self.folder), program

    def _watch(self, target: Target, program: Path, gdb: Gdb, stops: int) -> None:
        tracer = Tracer(convert=self.mode.convert)
        with Process(target.pid) as process:
            while self.row.stops < stops:
                if not self.workload.step or not self.row.stops:
                    target.run(self.random.uniform(self.workload.wait if self.workload.step else 0, self.workload.wait))
                    target.stop()
                self._look(target, program, process, tracer, gdb)

    def _look(self, target: Target, program: Path, process: Process, tracer: Tracer, gdb: Gdb) -> None:
        try:
            threads = tracer.trace_process(process)
        except StackError as error:
            raise EndedError(str(error)) from None
        target.wait_until_stopped()
        code = Code(target.mappings())
        ours = {}
        for thread in threads:
            frames = [(frame.pc, frame.cfa) for frame in thread.frames]
            guessed = frozenset(number for number, frame in enumerate(thread.frames) if frame.how is RuleSource.FRAME_POINTER)
            ours[thread.tid] = Stack(frames, thread.end.words, thread.end in COMPLETE, guessed)
            self.row.how.update(frame.how.value if frame.how else "not known" for frame in thread.frames)
            self.row.places.update(self._places(process, code, thread.frames[0].pc, [frame.signal for frame in thread.frames]))
        try:
            theirs = gdb.stacks(target.pid, self._main(code, program), self.workload.step)
        except GdbError as error:
            self.row.reasons[f"gdb: {error}"] += 1
            raise EndedError(str(error)) from None
        target.wait_until_stopped()
        self.row.stops += 1
        if self.mode.copies:
            have_sections = self.replaced.keys() - self.mode.copies.refused.keys()
            self.row.left_alone.update(code.files() - {str(file) for file in have_sections})
        for tid in ours.keys() | theirs.keys():
            self._compare(f"stop {self.row.stops}", code, ours.get(tid), theirs.get(tid))

    def _main(self, code: Code, program: Path) -> tuple[str, int] | None:
        """A copy has other program headers, so that gdb would not know by itself where a position-independent original is."""
        if not self.mode.copies or open_elf(program).header.e_type != ET_DYN:
            return None
        start = code.start_of(str(program))
        return None if start is None else (str(program), start)

    def _compare(self, where: str, code: Code, ours: Stack | None, theirs: Stack | None) -> None:
        self.row.threads += 1
        if ours is None or theirs is None:
            self.row.differences.append(f"{where}: a thread that {'gdb' if ours is None else 'only we'} saw")
            return
        found = compare(ours, theirs, code)
        self.row.frames += found.equal
        same = zip(ours.frames[: found.equal], theirs.frames[: found.equal], strict=True)
        self.row.cfas += sum(None not in (one[1], other[1]) for one, other in same)
        if found.differs:
            self.row.differences.append(f"{where}: {found.reason}")
        elif found.reason:
            self.row.reasons[found.reason] += 1
        else:
            self.row.equal += 1

    def _places(self, process: Process, code: Code, pc: int, signals: list[bool]) -> set[str]:
        place = code.place(pc)
        found = {"in a signal handler"} if any(signals) else set()
        if sum(signals) > 1:
            found.add("in a handler within a handler")
        if place.path == "[vdso]":
            found.add("in the vdso")
        if place.section.startswith(".plt"):
            found.add("in a PLT stub")
        if place.starts_function:
            found.add("at a function's first instruction")
        if process.read(pc, 2).startswith(RETURNS):
            found.add("at a return")
        return found
