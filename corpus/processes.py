"""Work on items, each in a process of its own: what a process dies of is a finding about its item."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Item = TypeVar("Item")


def each_in_a_process(
    items: Sequence[Item], work: Callable[[Item, Path], Any], *, at_once: int, seconds: int, scratch: Path
) -> Iterator[tuple[Item, Any, str]]:
    """(item, result, what its process died of), in the order in which they end.

    `work` gets an empty folder, which is removed afterwards. Its result must be JSON.
    """
    running: dict[int, tuple[Item, tempfile.TemporaryDirectory[str]]] = {}
    waiting = list(reversed(items))
    while waiting or running:
        while waiting and len(running) < at_once:
            item = waiting.pop()
            directory = tempfile.TemporaryDirectory(dir=scratch)
            running[_start(work, item, Path(directory.name), seconds)] = item, directory
        pid, status = os.wait()
        item, directory = running.pop(pid)
        with directory, suppress(ProcessLookupError):
            result = json.loads(Path(directory.name, "result").read_text()) if status == 0 else None
            os.killpg(pid, signal.SIGKILL)  # what it started and left
        yield item, result, death(status) if status else ""


def _start(work: Callable[[Item, Path], Any], item: Item, directory: Path, seconds: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setpgid(0, 0)
        signal.alarm(seconds)
        inside = directory / "work"
        inside.mkdir()
        (directory / "result").write_text(json.dumps(work(item, inside)))
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it is, the parent process goes on alone
        traceback.print_exc()
    finally:
        os._exit(status)


def death(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"killed by {signal.Signals(-code).name}" if code < 0 else "the study itself failed"
