"""Traces all stacks of a process: stops its threads, finds the rules of their code, and walks each stack.

To keep stops short, a trace first reads the loaded objects while the process runs, then stops it to copy registers and the
beginning of each stack, and walks the copies. Objects without a section are converted meanwhile, and the stacks walked again.
`_View` answers with the rule for a PC: from tables that the process registered for code it makes at run time; from the loaded
object's section; from the bytes of the code, if it returns from a signal handler; from what its instructions prove; or a guess.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sframegen.base.errors import FormatError
from sframegen.elf.code_bytes.machines import MACHINES
from sframegen.program import time_limits
from sframegen.registry.regions import BudgetError, Registry
from sframegen.stack.abi.machines import conventions_of
from sframegen.stack.live.proc import GONE
from sframegen.stack.objects.loaded_objects import Answers, LoadedObject, LoadedObjects
from sframegen.stack.objects.runtime_code import RuntimeCode
from sframegen.stack.snapshot import NotCopiedError, Snapshot, StackError
from sframegen.stack.walking.frames import End, RuleSource, Thread
from sframegen.stack.walking.walk import MAX_FRAMES, CodeRule, code_rule, guess, walk

if TYPE_CHECKING:
    from sframegen.detached.stores import Stores
    from sframegen.format.model import Match
    from sframegen.stack.live.process import Process

MAX_STOPS = 16  # times that one trace stops the process, because each stop may find another object to convert
UNCACHED_ENDS = (End.PENDING, End.DAMAGED_SECTION)  # because the first one will change, and the second has a detail to report
MAX_COROUTINE = 64  # bytes of the glibc code that coroutines return to
MAX_STACK_BYTES = 1 << 23  # bytes copied from one stack


class Tracer:
    """Traces one process, any number of times. `registry`: code that the process registered, looked up before loaded objects.

    `stores`: searched for the sections of objects that have none. `convert`: make sections for objects that no store has.
    """

    def __init__(
        self, *, convert: bool = False, stores: Stores | None = None, registry: Registry | None = None, limit: int = MAX_FRAMES
    ) -> None:
        self.objects = LoadedObjects(convert=convert, stores=stores)
        self.registry = Registry() if registry is None else registry
        self.runtime = RuntimeCode(self.registry, self.objects.moved)
        self.limit = limit
        self._stack_bytes = 1 << 16
        self.problems: dict[int, str] = {}  # by thread id: why it has no stack in the last trace

    def trace(self, snapshot: Snapshot) -> list[Thread]:
        """Return the stacks of all threads of a snapshot."""
        self.objects.verify(snapshot)
        self.runtime.update(snapshot)
        return self._walk_until_converted(snapshot)

    def trace_process(self, process: Process, tid: int | None = None) -> list[Thread]:
        """Return the stacks of all threads of a live process, or of thread `tid` alone. Raises StackError if there are none.

        The process is stopped while registers and stacks are copied. If a walk needs more memory, the process is stopped again and
        walked while it is stopped. Conversions take long, so they are done while the process runs.
        """
        for stop_count in range(MAX_STOPS):
            is_first_stop = stop_count == 0
            running = process.now()
            self.objects.prepare(running)
            self.runtime.update(running)
            with process.stopped(tid) as snapshot:
                self.objects.verify(snapshot)
                self.runtime.update(snapshot, time_limits.current.stopped_runtime_code)
                refused = {tid: f"thread {tid}: {why}" for tid, why in snapshot.refused.items() if why != GONE}
                if is_first_stop:  # at later ones, waiting threads seem to run, because they have just been released
                    idle = {thread.tid: thread.idle for thread in snapshot.threads}
                    copy = snapshot.copy_stacks(self._stack_bytes)
                else:
                    threads = self._walk(snapshot)
            try:
                if is_first_stop:
                    threads = self._walk_until_converted(copy)
                if not self.objects.convert_pending():
                    break
            except NotCopiedError:
                self._stack_bytes = min(8 * self._stack_bytes, MAX_STACK_BYTES)
        self.problems |= refused
        return [thread._replace(idle=idle.get(thread.tid, thread.idle)) for thread in threads]

    def _walk_until_converted(self, snapshot: Snapshot) -> list[Thread]:
        """Walk all stacks, again after each conversion of objects that a walk came across. Raises NotCopiedError."""
        self.objects.use_snapshot(snapshot)
        threads = self._walk(snapshot)
        while self.objects.convert_pending():
            threads = self._walk(snapshot)
        return threads

    def _walk(self, snapshot: Snapshot) -> list[Thread]:
        self.problems = {}
        view = _View(snapshot, self.objects, self.registry)
        threads = []
        for thread in snapshot.threads:
            if isinstance(thread.registers, StackError):
                self.problems[thread.tid] = str(thread.registers)
                continue
            view.detail = ""
            stack = walk(thread.registers, snapshot.abi, view, self.limit)
            threads.append(Thread(thread.tid, thread.name, stack.frames, stack.end, view.detail, thread.idle))
        return threads


class _View:
    """Gives walks the rules and memory of one snapshot. `detail`: more about the reason why the last walk ended."""

    def __init__(self, snapshot: Snapshot, objects: LoadedObjects, registry: Registry) -> None:
        self.objects = objects
        self.registry = registry
        self.abi = snapshot.abi
        self.conventions = conventions_of(snapshot.abi)
        self.word = snapshot.memory.word
        self.window = snapshot.memory.window
        # Registered code is looked up each time, because its tables grow.
        self.answers: Answers = ({}, {}) if len(registry) else objects.answers
        self.stack_at = snapshot.mappings.stack_at
        self.detail = ""
        self._call_ends: dict[int, bool] = {}  # results of `returns_to`
        returning = self.conventions.returning
        self._returning_rule = returning and code_rule(returning.rule, self.abi, RuleSource.PROVEN)

    def describe(self, pc: int, exact: bool) -> CodeRule | End:
        """Return the rule of the code at `pc`, or of the call before it if not `exact`; an End if there is none."""
        registered = self._registered_rule(pc if exact else pc - 1)
        if registered:
            return registered
        answers = self.objects.answers[exact]
        answer = answers.get(pc)
        if answer is None:
            answer = self._find_rule(pc, pc if exact else pc - 1)
            if answer not in UNCACHED_ENDS and answer is not self._returning_rule:  # for code made at run time, which changes
                answers[pc] = answer
        return answer

    def _registered_rule(self, address: int) -> CodeRule | End | None:
        """Return the rule of registered code, for which frame pointers are never guessed; None outside of such code."""
        region = self.registry.find(address)
        if region is None:
            return None
        try:
            match = region.rule_source.look_up(address)
        except FormatError as error:
            self.detail = str(error)
            return End.NOT_READ if isinstance(error, BudgetError) else End.DAMAGED_SECTION
        return code_rule(match.rule, self.abi, RuleSource.REGISTERED, signal=match.kind.signal) if match else End.NOT_COVERED

    def _find_rule(self, pc: int, address: int) -> CodeRule | End:
        """Return the rule of code in a loaded object. `address`: within the instruction whose rule is wanted."""
        loaded = self.objects.at(address)
        if loaded is None:
            loaded = self.objects.at(pc)  # tried because code that returns from a signal handler may begin a mapping
            return (loaded and self._rule_from_code(loaded, pc)) or End.NOT_CODE
        if loaded in self.objects.pending:
            return End.PENDING
        if (end := loaded.end_at(address)) is not None:
            return end
        try:
            match = loaded.look_up(address)
        except FormatError as error:
            self.detail = str(error)
            return End.DAMAGED_SECTION
        if match and not self._is_installing_handler(loaded, match, address):
            return code_rule(match.rule, self.abi, loaded.how, signal=match.kind.signal)
        if self._is_coroutine_end(loaded, pc):
            return End.OUTERMOST
        answer = self._rule_from_code(loaded, pc) or (None if match else self._proven_rule(loaded, address))
        return answer or guess(self.abi, self._explain_missing_rule(loaded))

    def _proven_rule(self, loaded: LoadedObject, address: int) -> CodeRule | End | None:
        """Return the rule that the instructions prove; None if they prove none."""
        self.objects.prove(loaded)
        if loaded in self.objects.pending:
            return End.PENDING
        match = loaded.proven.look_up(address) if loaded.proven else None
        return match and code_rule(match.rule, self.abi, RuleSource.PROVEN, signal=match.kind.signal)

    def _is_installing_handler(self, loaded: LoadedObject, match: Match, address: int) -> bool:
        """Return True where code switches to an exception's handler, because the section's rule may be wrong there."""
        from sframegen.code.function.hazards import MAX_FUNCTION, find_installations  # noqa: PLC0415 - not for a short command

        if match.size > MAX_FUNCTION:
            return False
        installations = find_installations(loaded.code(match.start, match.size), match.start, self.abi)
        return any(installation.copied <= address < installation.end for installation in installations)

    def _rule_from_code(self, loaded: LoadedObject, pc: int) -> CodeRule | None:
        """Return the rule of code that returns from a signal handler, which some C libraries do not describe, or only returns."""
        if context := self.conventions.context_at(loaded.code, pc):
            return code_rule(context.rule(self.abi.sp, self.abi.fp), self.abi, RuleSource.SIGNAL, signal=True)
        returning = self.conventions.returning
        if loaded.image is None and returning and loaded.code(pc, len(returning.code)) == returning.code:
            return self._returning_rule
        return None

    def _is_coroutine_end(self, loaded: LoadedObject, pc: int) -> bool:
        """Return True for the code that a coroutine's first function returns to: glibc's makecontext pushes its address."""
        pattern = MACHINES[self.abi.machine].coroutine
        return bool(pattern) and re.match(pattern, loaded.code(pc, MAX_COROUTINE), re.DOTALL) is not None

    def _explain_missing_rule(self, loaded: LoadedObject) -> End:
        """Return the End of a walk in this object's code without a rule, for the case that frame pointers do not help."""
        if loaded.section:
            return End.NOT_COVERED
        return End.NO_FRAME_POINTER if self.conventions.frame_record else End.NO_SECTION

    def starts_thread(self, pc: int) -> bool:
        loaded = self.objects.at(pc)
        return loaded is not None and self.conventions.starts_thread(loaded.code, pc)

    def returns_to(self, pc: int) -> bool:
        """Return True if a call ends at `pc`, and in code made at run time, because interpreters push return addresses."""
        if pc not in self._call_ends:
            before, after = self.objects.at(pc - 1), self.objects.at(pc)
            self._call_ends[pc] = bool(
                (before and (before.image is None or self.conventions.ends_call(before.code, pc)))
                or (after and self._rule_from_code(after, pc))
            )
        return self._call_ends[pc]
