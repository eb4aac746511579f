"""x86-64 programs stepped instruction by instruction, with a stack of calls that is kept beside: what each frame's caller is."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sframegen.format.model import Rule, Where

TRACEME, CONT, SINGLESTEP, GETREGS, SETREGS, DETACH, SETOPTIONS = 0, 7, 9, 12, 13, 17, 0x4200
EXITKILL = 1 << 20
LONGEST_CALL = 15  # bytes of an instruction
RBP, RSP, RIP = 4, 19, 16  # places in struct user_regs_struct
REGISTERS = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16)  # by DWARF's numbers
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


class Frame(NamedTuple):
    """What a call made: its CFA, the address to return to, and the caller's frame pointer."""

    cfa: int
    ra: int
    fp: int


class Step(NamedTuple):
    pc: int
    registers: tuple[int, ...]  # by DWARF's numbers
    caller: Frame | None  # None: of the frame that the program began with


class Traced:
    """A program that is not position-independent, stopped at an address for the first time."""

    def __init__(self, program: Path, stop: int, arguments: Sequence[str] = ()) -> None:
        self.pid = os.fork()
        if not self.pid:
            libc.ptrace(TRACEME, 0, None, None)
            os.execv(program, [str(program), *arguments])
        self._wait()
        libc.ptrace(SETOPTIONS, self.pid, None, EXITKILL)
        self.memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR)
        original = os.pread(self.memory, 1, stop)
        os.pwrite(self.memory, b"\xcc", stop)
        libc.ptrace(CONT, self.pid, None, None)
        self._wait()
        os.pwrite(self.memory, original, stop)
        registers = self._registers()
        registers[RIP] = stop
        libc.ptrace(SETREGS, self.pid, None, ctypes.byref(registers))

    def _wait(self) -> bool:
        _, status = os.waitpid(self.pid, 0)
        self.ended = os.WIFEXITED(status) or os.WIFSIGNALED(status)
        return os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTRAP

    def _registers(self) -> ctypes.Array[ctypes.c_ulong]:
        registers = (ctypes.c_ulong * 27)()
        libc.ptrace(GETREGS, self.pid, None, ctypes.byref(registers))
        return registers

    def word(self, address: int) -> int:
        return int.from_bytes(os.pread(self.memory, 8, address), "little")

    def _is_gone(self, frame: Frame, sp: int, pc: int) -> bool:
        return sp > frame.cfa or (sp == frame.cfa and pc == frame.ra) or self.word(frame.cfa - 8) != frame.ra

    def run(self, look: Callable[[Step], None], steps: int = 1 << 22) -> None:
        """To the program's end, or this many steps; `look` is called before each instruction.

        A call is what pushes the address after itself; its frame is gone when control is back there, SP is beyond, or another
        address is in its place.
        """
        calls: list[Frame] = []
        before = self._registers()
        for _ in range(steps):
            look(Step(before[RIP], tuple(before[place] for place in REGISTERS), calls[-1] if calls else None))
            libc.ptrace(SINGLESTEP, self.pid, None, None)
            if not self._wait():
                break
            registers = self._registers()
            sp = registers[RSP]
            if sp == before[RSP] - 8 and 2 <= (ra := self.word(sp)) - before[RIP] <= LONGEST_CALL and registers[RIP] != ra:
                calls.append(Frame(sp + 8, ra, before[RBP]))
            while calls and self._is_gone(calls[-1], sp, registers[RIP]):
                calls.pop()
            before = registers

    def let_go(self) -> None:
        """It stays stopped, and others may trace it."""
        libc.ptrace(DETACH, self.pid, None, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def end(self) -> None:
        """Kills it, if it still runs."""
        os.close(self.memory)
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def frame(self, rule: Rule, step: Step) -> Frame | None:
        """What a rule makes of the registers and the stack."""
        if rule.cfa is None:
            return None

        def value(where: Where, cfa: int) -> int:
            at = (cfa if where.register is None else step.registers[where.register]) + where.offset
            return self.word(at) if where.deref else at

        cfa = value(rule.cfa, 0)
        assert rule.ra is not None
        return Frame(cfa, value(rule.ra, cfa), step.registers[6] if rule.fp is None else value(rule.fp, cfa))
