"""Runs within gdb: answers requests, a line of JSON each, with the stacks of processes that are stopped already."""

from __future__ import annotations

import json
import os
import re
import signal
from contextlib import suppress

import gdb

SETTINGS = (
    *("pagination off", "confirm off", "width 0", "debuginfod enabled off", "auto-load no", "exec-file-mismatch off", "sysroot"),
    *("debug-file-directory", "print frame-arguments none", "backtrace past-main on", "backtrace past-entry on"),
)
CFA = re.compile(r"Stack (?:frame|level \d+, frame) at (0x[0-9a-f]+):")
NOT_ON_THE_STACK = (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME)  # made of debug information
MAX_FRAMES = 20_000


def quiet(command: str) -> str:
    return gdb.execute(command, to_string=True) or ""


def cfa_of(frame: gdb.Frame) -> int | None:
    """What `info frame` says; None for the outermost frame, of which gdb looks for none."""
    frame.select()
    match = CFA.search(quiet("info frame"))
    return (int(match[1], 16) if match else 0) or None


def stack(cfas: bool) -> dict[str, object]:
    """The stack of the selected thread."""
    frames: list[tuple[int, int | None]] = []
    frame: gdb.Frame | None = gdb.newest_frame()
    why = ""
    while frame is not None and len(frames) < MAX_FRAMES:
        if frame.type() not in NOT_ON_THE_STACK:
            frames.append((frame.pc(), cfa_of(frame) if cfas else None))
        try:
            older = frame.older()
            why = gdb.frame_stop_reason_string(frame.unwind_stop_reason())
        except gdb.error as error:
            older, why = None, str(error)
        frame = older
    return {"frames": frames, "why": why}


def stacks(pid: int, main: tuple[str, int] | None, only: int | None, cfas: bool) -> dict[int, object]:
    """By thread. `main`: the program's file and where it is, where gdb is to read another one than what is mapped."""
    quiet(f"attach {pid}")
    if main:
        quiet("exec-file")
        quiet(f"symbol-file {main[0]} -o {main[1]}")
        quiet("sharedlibrary")
    found: dict[int, object] = {}
    for thread in gdb.selected_inferior().threads():
        if only in (None, thread.ptid[1]):
            thread.switch()
            found[thread.ptid[1]] = stack(cfas)
    return found


def let_go(pid: int, steps: int) -> None:
    """It stays stopped; a few instructions later."""
    if steps:
        quiet(f"stepi {steps}")
    os.kill(pid, signal.SIGSTOP)
    quiet("detach")


def main() -> None:
    for setting in SETTINGS:
        quiet(f"set {setting}")
    quiet("handle SIGSTOP nostop noprint nopass")
    requests, answers = (os.fdopen(int(os.environ[name]), mode) for name, mode in (("REQUESTS", "r"), ("ANSWERS", "w")))
    for line in requests:
        request = json.loads(line)
        answer: dict[str, object] = {}
        try:
            quiet("file")  # the last one's
            answer["threads"] = stacks(request["pid"], request["main"], request["only"], request["cfas"])
            let_go(request["pid"], request["steps"])
        except (gdb.error, OSError) as error:
            answer["error"] = str(error)
            with suppress(gdb.error):
                quiet("detach")  # else nobody but we could wait for its end
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


main()
