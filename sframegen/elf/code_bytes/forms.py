"""The types of the tables in machines.py: patterns of padding, of calls, and of runtime code that unwinding has to recognise."""

from __future__ import annotations

from sframegen.base.quick_typing import NamedTuple


class PaddingPatterns(NamedTuple):
    """The byte sequences that pad code. Those in `prefixed` may follow any number of the bytes in `prefixes`.

    No pattern is the beginning of another.
    """

    unprefixed: tuple[bytes, ...]
    prefixed: tuple[bytes, ...] = ()
    prefixes: bytes = b""


class CallPattern(NamedTuple):
    """A pattern of a call at a function's end: its last eight bytes, as a big-endian number, equal `value` in the bits of `mask`.

    `relative`: the last four bytes are the distance to the callee, which lies in the file's code; 0 if a relocation fills it in.

    Another instruction can end with the same bytes, because only the last ones are compared. That is rare and harmless: the bytes
    after it are padding in any case, and never execute.
    """

    mask: int
    value: int
    relative: bool = False


class GoCode(NamedTuple):
    """Patterns of Go's runtime. All but `padding` are regular expressions; group 1 is the code that each is searched for.

    `exit` and `switch` begin with fixed bytes, because all code is searched: alternatives would take ten times as long.
    """

    exit: bytes  #: runtime.goexit, where each goroutine's stack ends
    switch: bytes  #: instructions that load SP from a goroutine's structure, which switches to its stack; without a group
    padding: bytes  #: two fillers between functions
    new_thread: bytes  #: the code in runtime.clone where a thread begins
    alignment: int  #: alignment of functions in bytes


class CodeBytes(NamedTuple):
    """The code patterns of a machine. Fields of type `bytes` are regular expressions, empty where no code needs them.

    Each expression begins with fixed bytes, as those of GoCode do.
    """

    padding: PaddingPatterns
    calls: tuple[CallPattern, ...]
    eh_return: bytes = b""  #: the last instructions of gcc's `__builtin_eh_return`
    go: GoCode | None = None
    new_thread: bytes = b""  #: a system call that starts a thread; group 1 is the thread's code
    coroutine: bytes = b""  #: code without a caller; coroutines return to its first byte, or to that of group 1 if it matches
    new_thread_call: bytes = b""  #: such a system call in a library with CFI; group 1 is where the thread returns from it
