"""All frames of all threads as gdb sees them. Without gdb around, it runs itself inside of one."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

try:
    gdb: Any = importlib.import_module("gdb")
except ImportError:
    gdb = None

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sframegen.stack.walking.frames import Thread

MARK = "frames: "
MAX_SECONDS = 120


class GdbFrame(NamedTuple):
    """`cfa`: 0 where gdb has none; what it says of a frame that a signal made is not one."""

    pc: int
    cfa: int
    signal: bool


def frames_by_gdb(program: str, *commands: str) -> dict[int, list[GdbFrame]]:
    """By thread; `commands` load what is looked at."""
    words = ["set confirm off", "set debuginfod enabled off", "set backtrace past-main on", *commands]
    script = [word for command in words for word in ("-ex", command)]
    done = subprocess.run(
        [program, "-q", "-nx", "-batch", *script, "-x", __file__],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=MAX_SECONDS, check=False,
    )  # fmt: skip
    told = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    assert len(told) == 1, done.stdout + done.stderr
    return {int(tid): [GdbFrame(*frame) for frame in frames] for tid, frames in json.loads(told[0]).items()}


def differences(threads: Iterable[Thread], theirs: dict[int, list[GdbFrame]]) -> Iterator[str]:
    """Where PC or CFA are not gdb's, until gdb ends."""
    for thread in threads:
        frames = theirs.get(thread.tid, [])
        for number, (mine, gdbs) in enumerate(zip(thread.frames, frames, strict=False)):
            if mine.pc != gdbs.pc:
                yield f"{thread.tid} #{number}: PC {mine.pc:#x}, gdb's is {gdbs.pc:#x}"
                break
            if mine.cfa and gdbs.cfa and not mine.signal and mine.cfa != gdbs.cfa:
                yield f"{thread.tid} #{number}: at {mine.pc:#x} CFA {mine.cfa:#x}, gdb's is {gdbs.cfa:#x}"


def unfinished(threads: Iterable[Thread], theirs: dict[int, list[GdbFrame]]) -> Iterator[tuple[Thread, int]]:
    """Threads of which gdb has more frames, and how many more."""
    for thread in threads:
        more = len(theirs.get(thread.tid, [])) - len(thread.frames)
        if more > 0:
            yield thread, more


def _inside() -> None:
    found = {}
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        found[thread.ptid[1] or thread.ptid[0]] = list(_frames())
    sys.stdout.write(MARK + json.dumps(found) + "\n")


def _frames() -> Iterator[tuple[int, int, bool]]:
    """Until gdb cannot go on. Frames that it makes up of inlining and tail calls are left out."""
    try:
        frame = gdb.newest_frame()
        while frame is not None:
            frame.select()
            if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                try:
                    told = gdb.execute("info frame", to_string=True)
                except gdb.error:
                    told = ""
                match = re.search(r"frame at 0x([0-9a-f]+)", told)
                yield frame.pc(), int(match[1], 16) if match else 0, frame.type() == gdb.SIGTRAMP_FRAME
            frame = frame.older()
    except gdb.error:
        return


if gdb is not None:
    _inside()
