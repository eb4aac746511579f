"""One gdb for many stops."""

from __future__ import annotations

import json
import os
import select
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Self

from .compare import Stack

if TYPE_CHECKING:
    from types import TracebackType

SCRIPT = Path(__file__).with_name("in_gdb.py")
SECONDS = 120  # for one answer


class GdbError(Exception):
    """It could not look at the process."""


class Gdb:
    """Reads the files that have the names of what is mapped, as they are for this process: not those of another mount namespace."""

    def __init__(self) -> None:
        their_requests, self._out = os.pipe()
        self._in, their_answers = os.pipe()
        environment = {**os.environ, "REQUESTS": str(their_requests), "ANSWERS": str(their_answers), "LC_ALL": "C.UTF-8"}
        self._process = subprocess.Popen(
            ["gdb", "-nx", "-q", "-batch", "-x", SCRIPT],
            pass_fds=(their_requests, their_answers), env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(their_requests)
        os.close(their_answers)
        self._answers = os.fdopen(self._in)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._out)
        self._answers.close()
        if error:
            self._process.kill()
        self._process.wait()

    def stacks(
        self, pid: int, main: tuple[str, int] | None = None, steps: int = 0, only: int | None = None, *, cfas: bool = True
    ) -> dict[int, Stack]:
        """By thread, of a process that SIGSTOP stopped, and that is left so, `steps` instructions later. Raises GdbError.

        `only`: this thread. `cfas`: with the CFA of each frame, which takes longer.
        """
        request = {"pid": pid, "main": main, "steps": steps, "only": only, "cfas": cfas}
        os.write(self._out, json.dumps(request).encode() + b"\n")
        ready, _, _ = select.select([self._in], [], [], SECONDS)
        line = self._answers.readline() if ready else ""
        if not line:
            raise GdbError("no answer")
        answer = json.loads(line)
        if "error" in answer:
            raise GdbError(answer["error"])
        return {
            int(tid): Stack([(pc, cfa) for pc, cfa in found["frames"]], found["why"], found["why"] == "outermost")
            for tid, found in answer["threads"].items()
        }
