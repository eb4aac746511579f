"""A process that many tests ask: its death costs one answer, not all that come after it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Self


class Answering:
    """A line of JSON in, a line of JSON out. It starts with the first question, and again with the first one after its death."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def ask(self, question: object) -> Any:
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=self._environment)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(json.dumps(question), file=self._process.stdin)
        except BrokenPipeError:
            answer = ""
        else:
            answer = self._process.stdout.readline()
        if not answer:
            raise ChildProcessError(f"{self._command[:2]} ended with status {self._end()}")
        return json.loads(answer)

    def _end(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        with process:
            process.communicate()
        return process.returncode
