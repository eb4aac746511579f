"""All time limits of this program in one value, `current`. Each wait reads it anew, so that tests can change it."""

from __future__ import annotations

from sframegen.base.quick_typing import NamedTuple


class TimeLimits(NamedTuple):
    """Time limits in seconds. They end work that would never end, and leave enough time for slow work on a busy machine."""

    # Limits on waiting for other processes, in real time.
    sleeping_helper: float = 2.0  # for a helper process that sleeps; a file's mount may not answer
    busy_helper: float = 10.0  # for a helper process that runs, or waits for a CPU or a disk
    all_helpers: float = 4.0  # for all helper processes that do not answer; once it is used up, each gets only helper.MIN_WAIT
    thread_stop: float = 2.0  # until a thread in an uninterruptible sleep stops
    command_start: float = 5.0  # until a command is executed; its file system may not answer
    process_end: float = 5.0  # until a process ends after SIGKILL
    lock: float = 30.0  # for a file that another process has locked
    lock_notice: float = 1.0  # until users are told which process a run waits for
    progress: float = 1.0  # until a progress bar appears
    device_numbers: float = 60.0  # until device numbers are read again, because another device may get them

    # Limits on building tables of code that processes generate at run time, in real time.
    runtime_code: float = 10.0
    stopped_runtime_code: float = 1.0  # while the process is stopped

    # Limits for one file, in CPU time; in real time they are three times as long.
    table: float = 30.0  # for its table; the largest take less than a second
    proof: float = 10.0  # for proving rules of code without CFI; 1 MiB of code takes a second
    lines: float = 10.0  # for finding the functions and source lines of its addresses
    requested_lines: float = 60.0  # the same if users ask for lines or inlined functions

    # The limit for finding lines in all files, in real time, unless users ask for them; the profile is written afterwards.
    all_lines: float = 15.0


current = TimeLimits()
