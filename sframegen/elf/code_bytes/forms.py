"""The types of the machines' tables: how a machine pads code, and how its calls end."""

from __future__ import annotations

from sframegen.base.quick_typing import NamedTuple


class Fill(NamedTuple):
    """Padding patterns. `alone`: instructions and bytes without a prefix; `prefixed`: those after any number of prefix bytes.

    No pattern is the beginning of another.
    """

    alone: tuple[bytes, ...]
    prefixed: tuple[bytes, ...] = ()
    prefixes: bytes = b""


class Call(NamedTuple):
    """A call pattern at a function's end: the last eight bytes, as a big-endian number masked with `mask`, equal `value`.

    `relative`: the last four bytes are the distance to the callee, which lies in the file's code; 0 if a relocation fills it in.

    Another instruction can end with the same bytes, since only the last ones are compared. This is rare and harmless: the bytes
    that follow are padding in any case, and never execute.
    """

    mask: int
    value: int
    relative: bool = False


class GoCode(NamedTuple):
    """Patterns of Go's runtime. `exit`: its group is runtime.goexit, where each goroutine's stack ends; `switch`: instructions that
    take SP from a goroutine's structure, where another stack begins; `padding`: two fillers between functions; `new_thread`: its
    group is where a thread begins in runtime.clone.

    `exit` and `switch` begin with fixed bytes, for which all code is searched: alternatives would take ten times as long.
    """

    exit: bytes
    switch: bytes
    padding: bytes
    new_thread: bytes
    alignment: int  #: alignment of functions in bytes


class CodeBytes(NamedTuple):
    """A machine's code patterns. `eh_return`: the last instructions of gcc's `__builtin_eh_return`; empty if unknown.

    `new_thread`: a system call that starts a thread; its group is the thread's code. `coroutine`: code without a caller, to whose
    first byte (the group's, if it has one) coroutines return. `new_thread_call`: such a system call in a library with CFI; its
    group is the code with which the creating thread returns. They are empty if no library needs them. Each begins with fixed bytes,
    as the patterns of GoCode do.
    """

    fill: Fill
    calls: tuple[Call, ...]
    eh_return: bytes = b""
    go: GoCode | None = None
    new_thread: bytes = b""
    coroutine: bytes = b""
    new_thread_call: bytes = b""
