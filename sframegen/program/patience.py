"""All time limits of this program in one value, which is read at each wait, so that tests can set it."""

from __future__ import annotations

from sframegen.base.quick_typing import NamedTuple


class Patience(NamedTuple):
    """Time limits in seconds. They end work that would never end, and leave enough time for slow work on a busy machine."""

    # For others, in real time.
    helper: float = 2.0  # until a helper answers that sleeps: a file's mount may be silent
    busy_helper: float = 10.0  # the same of one that runs, or waits for a CPU or a disk
    helpers: float = 4.0  # in vain for all helpers; after that, hardly at all
    threads: float = 2.0  # until a thread stops that is in an uninterruptible sleep
    started: float = 5.0  # until a command is executed: its file system may be silent
    killed: float = 5.0  # from SIGKILL on
    lock: float = 30.0  # for a file that another process has locked
    lock_notice: float = 1.0  # until the user reads whom a run waits for
    progress: float = 1.0  # until there is a bar
    devices: float = 60.0  # that the numbers of devices stay known: others may get them

    # For tables of code that processes make at run time, in real time.
    made_code: float = 10.0
    made_code_stopped: float = 1.0  # while the process is stopped

    # For one file, in time of a CPU; three times as much in real time.
    table: float = 30.0  # the largest take less than one
    proof: float = 10.0  # of rules for code without CFI; 1 MiB of code takes one second
    places: float = 10.0  # of the functions and lines of its addresses
    asked_places: float = 60.0  # the same, for users who ask for lines or inlined functions

    # For all files together, in real time, unless users ask: the profile waits to be written.
    all_places: float = 15.0


current = Patience()
