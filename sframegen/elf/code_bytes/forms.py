"""How a machine pads code, and how its calls end: the types of the tables in the files of the machines."""

from __future__ import annotations

from typing import NamedTuple


class Fill(NamedTuple):
    """Padding. `alone`: instructions and bytes without a prefix; `prefixed`: those after any number of the prefix bytes.

    None begins another.
    """

    alone: tuple[bytes, ...]
    prefixed: tuple[bytes, ...] = ()
    prefixes: bytes = b""


class Call(NamedTuple):
    """A call at a function's end: the last eight bytes, as a big-endian number, are `value` under `mask`.

    `relative`: the last four are the distance to the callee, which lies in the file's code; 0 if a relocation fills it in.

    Only the last bytes are compared: an instruction that is not a call can end with the same ones. That is rare and harmless:
    what follows is padding in any case, and never executes.
    """

    mask: int
    value: int
    relative: bool = False


class GoCode(NamedTuple):
    """What Go's runtime looks like. `exit`: runtime.goexit, where each goroutine's stack ends, is the group; `switch`: instructions
    that take SP from a goroutine's structure, where another stack begins; `padding`: two fillers between functions; `new_thread`:
    the group is where a thread begins in runtime.clone.

    The first two begin with certain bytes, for which all code is searched: a choice would take ten times as long.
    """

    exit: bytes
    switch: bytes
    padding: bytes
    new_thread: bytes
    alignment: int  #: of functions


class CodeBytes(NamedTuple):
    """`eh_return`: an expression for the last instructions of gcc's `__builtin_eh_return`; empty if they are not known.

    `new_thread`: one for a system call after which a thread begins; its code is the group. `coroutine`: one for code without a
    caller to whose first byte coroutines return: that of the group, if there is one. `new_thread_call`: one for such a system call
    of a library with CFI, and the code that its maker returns with, which is the group. They are empty if no library needs them.
    Each begins with certain bytes, as those of GoCode do.
    """

    fill: Fill
    calls: tuple[Call, ...]
    eh_return: bytes = b""
    go: GoCode | None = None
    new_thread: bytes = b""
    coroutine: bytes = b""
    new_thread_call: bytes = b""
