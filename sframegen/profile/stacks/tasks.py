"""Numbers the tasks that were sampled: a task is one program in one process, or one thread of it."""

from __future__ import annotations

from array import array
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from sframegen.base.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Task(NamedTuple):
    """A process or thread. `tid`: 0 if the profile does not distinguish threads. Names may be empty."""

    pid: int
    tid: int
    process: str
    thread: str


class SampledTasks:
    """All sampled tasks, numbered in the order of their first sample. After an exec, or if a pid is reused, it is another task."""

    def __init__(self) -> None:
        self._pids, self._tids = array("I"), array("I")
        self._processes, self._threads = array("I"), array("I")  # numbers of names
        self._names: dict[str, int] = {"": 0}
        self.texts = [""]
        self._current: dict[int, dict[int, tuple[int, int]]] = {}  # by pid and tid: the program, the number

    def __len__(self) -> int:
        return len(self._pids)

    def __getitem__(self, number: int) -> Task:
        text = self.texts
        return Task(self._pids[number], self._tids[number], text[self._processes[number]], text[self._threads[number]])

    def __iter__(self) -> Iterator[Task]:
        return map(self.__getitem__, range(len(self)))

    def with_printable_names(self) -> SampledTasks:
        """Return the same tasks with names that terminals and formats can show."""
        tasks = copy(self)
        tasks.texts = [printable(text) for text in self.texts]
        return tasks

    def find_number(self, pid: int, tid: int, program: int = 0) -> int:
        """Return the number of a task, adding it if it is new. `program`: a number that changes with each exec; 0 if unknown."""
        threads = self._current.setdefault(pid, {})
        last_program, number = threads.get(tid, (-1, 0))  # -1: the thread has no task yet
        if last_program == program or (program == 0 and last_program > 0):
            return number
        if last_program != 0:  # a new task, and not one whose program has just become known
            number = len(self._pids)
            self._pids.append(pid)
            self._tids.append(tid)
            self._processes.append(0)
            self._threads.append(0)
        threads[tid] = program, number
        return number

    def set_names(self, number: int, process: str, thread: str = "") -> None:
        """Set the names of a task. An empty name leaves the known one as it is."""
        if process:
            self._processes[number] = self._number_name(process)
        if thread:
            self._threads[number] = self._number_name(thread)

    def forget(self, pid: int) -> None:
        """Forget a process that has ended, so that a new process with its id becomes another task."""
        self._current.pop(pid, None)

    def _number_name(self, text: str) -> int:
        """Return the number of a name, adding it if it is new."""
        number = self._names.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number
