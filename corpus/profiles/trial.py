"""One workload: sampled many times; each time its process stops, and the others look at it."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.profiles.held_samples import Copy, NothingSampledError
from corpus.profiles.running import Running
from corpus.profiles.verdict import Row, Verdict, as_stack, traced_stack
from corpus.stacks.code import Code
from corpus.stacks.debugger import Gdb, GdbError
from corpus.stacks.target import EndedError, wait_until_stopped
from sframegen.profile.packed_frames import unpacked_frame
from sframegen.stack.live.process import Process
from sframegen.stack.snapshot.snapshot import StackError
from sframegen.stack.tracer import Tracer
from sframegen.stack.walking.ends import End

if TYPE_CHECKING:
    from corpus.profiles.held_samples import HeldSamples, Sampled
    from corpus.profiles.workloads import Workload
    from sframegen.stack.abi.registers import ThreadRegisters
    from sframegen.stack.walking.frames import Thread

TRIES = 20  # without a sample
MAX_STACK = 1 << 24  # bytes
RED_ZONE, PAGE = 128, 4096  # bytes below SP, where the value of a register that was just restored still is, in the same page
# A system call changes these: its result, and where `syscall` keeps the PC and the flags.
CHANGED_BY_CALLS = {0, 2, 11}
MOVED = "the thread went on before it stopped"
UNKNOWN = "its mappings of that moment were not known"
GONE = "it ended, or executed another program, before it stopped"


class LeftOutError(Exception):
    """The sample cannot be judged."""


class Trial:
    """A workload is started again when it ends."""

    def __init__(self, workload: Workload, folder: Path, seed: int, held: HeldSamples) -> None:
        self.workload, self.folder, self.held = workload, folder, held
        self.random = random.Random(f"{seed} {workload.name}")  # noqa: S311 - moments, not secrets
        self.row = Row(workload.name)
        self._verdict = Verdict(self.row)
        self._tracer = Tracer(convert=True)

    def run(self, gdb: Gdb, samples: int) -> Row:
        failed = 0
        while self.row.samples < samples and failed < TRIES:
            before = self.row.samples
            with suppress(EndedError, NothingSampledError), Running(self.workload, self.folder, self.random, self.held.follow):
                while self.row.samples < samples:
                    self._sample(gdb)
            failed = 0 if self.row.samples > before else failed + 1
        if failed:
            self.row.differences.append(f"could not be run: it was started {failed} times without a sample")
        return self.row

    def _sample(self, gdb: Gdb) -> None:
        sample = self.held.take()
        try:
            self._judge(sample, gdb)
        except LeftOutError as error:
            self.row.left_out[str(error)] += 1
        finally:
            self.held.go_on(sample.pid)
        time.sleep(self.random.uniform(0, self.workload.wait))
        self.held.release()

    def _judge(self, sample: Sampled, gdb: Gdb) -> None:
        if not sample.walked.frames:
            raise LeftOutError(UNKNOWN)
        files = [unpacked_frame(frame).file for frame in sample.walked.frames]
        if sample.walked.end is End.NO_TABLE and (why := self.held.unopened(files)):
            raise LeftOutError(why[0])
        try:
            wait_until_stopped(sample.pid)
            code = Code(Path(f"/proc/{sample.pid}/maps").read_text())
            process = Path(f"/proc/{sample.pid}/comm").read_text().strip()
            thread, registers, copy = self._traced(sample)
            theirs = gdb.stacks(sample.pid, only=sample.tid, cfas=False).get(sample.tid)
            wait_until_stopped(sample.pid)
        except (EndedError, OSError, StackError):
            raise LeftOutError(GONE) from None
        except GdbError as error:
            raise LeftOutError(f"gdb: {error}") from None
        if theirs is None:
            raise LeftOutError("gdb does not see the thread")
        now, then = registers.values, sample.registers
        changed = {number for number, value in enumerate(then.registers) if now.get(number, value) != value}
        if registers.pc != then.pc or not changed <= CHANGED_BY_CALLS:
            raise LeftOutError(MOVED)

        verdict = self._verdict
        verdict.add(sample.walked, finished=sample.finished, in_call=bool(changed), process=process)
        ours = as_stack(sample.walked, self.held.addresses(sample.pid, sample.walked.frames), thread.frames)
        verdict.judge_gdb(ours, sample.walked.end, theirs, code)
        verdict.judge_stack(ours, sample.walked.end, traced_stack(thread), code)
        verdict.judge_guesses(ours, code)
        again = self.held.walk_copy(sample, copy)
        more = self.held.addresses(sample.pid, again.frames[len(sample.walked.frames) :])
        new_code = bool(more) and not any(span.start <= address < span.end for span in sample.known for address in more[0])
        verdict.judge_copy(again, sample.walked, new_code=new_code)

    def _traced(self, sample: Sampled) -> tuple[Thread, ThreadRegisters, Copy]:
        """The thread as sframegen stack sees it, its registers, and its stack from its red zone on."""
        with Process(sample.pid) as process:
            threads = self._tracer.trace_process(process, sample.tid)
            with process.stopped(sample.tid) as snapshot:
                registers = snapshot.registers(sample.tid)
                sp = registers.values[snapshot.abi.sp]
                start = max(sp - RED_ZONE, sp & -PAGE)
                found = snapshot.mappings.stack_at(sp)
                copy = Copy(start, snapshot.memory.read(start, min(found[1] - start, MAX_STACK)) if found else b"")
        if not threads:
            raise LeftOutError(GONE)
        return threads[0], registers, copy
