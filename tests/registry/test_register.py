"""What a loader says of the objects that it has loaded; the calls of a real kernel."""

from __future__ import annotations

import ctypes
import errno
import subprocess
from typing import TYPE_CHECKING

import pytest

import sframegen
from sframegen.elf.file import open_elf
from sframegen.elf.notes import debug_link_of
from sframegen.elf.records import PF, PT, Phdr
from sframegen.elf.symbols import functions_named
from sframegen.format.abi import AMD64
from sframegen.format.locate import sframe_of
from sframegen.registry import system
from sframegen.registry.codectl_calls import CodeOption, codectl
from sframegen.registry.interface import Caller
from sframegen.registry.prctl_calls import prctl_register
from sframegen.registry.regions import Registry, RegistryError
from sframegen.registry.requests import INTERFACES, loaded_section
from sframegen.registry.sframe_calls import sframe_register
from sframegen.registry.structures import SframeSetup, decode_struct
from tests.support.processes.memories import Pieces

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.peers import Compiler

SOURCE = '#include <stdio.h>\nint main(void) { puts("ready"); fflush(stdout); return getchar() + 1; }\n'


@pytest.fixture(scope="module")
def program(compile_c: Compiler) -> Path:
    """A program with a section, a build-id and a debug link."""
    plain = compile_c(SOURCE, "-O1", "-Wl,--build-id=0x0102030405", name="plain")
    file = plain.with_name("registered")
    debug = plain.with_name("registered.debug")
    subprocess.run(["objcopy", "--only-keep-debug", plain, debug], check=True)
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug}", plain, file], check=True)
    sframegen.add_section(file, verify=False)
    return file


def test_what_is_passed_is_what_the_file_has(program: Path) -> None:
    elf = open_elf(program)
    found = sframe_of(elf)
    assert found is not None
    data, address = found
    [(start, end)] = elf.executable_ranges()
    loaded = loaded_section(str(program), "little", elf.segments, 0x1000, elf)
    assert loaded is not None
    setup = SframeSetup(address + 0x1000, len(data), start + 0x1000, end - start)
    assert decode_struct(SframeSetup, INTERFACES["sframe"](loaded, 0)) == setup
    words = (start + 0x1000, address + 0x1000, len(data))
    assert INTERFACES["prctl"](loaded, 0) == b"".join(word.to_bytes(8, "little") for word in words)


@pytest.mark.parametrize("interface", INTERFACES)
def test_the_model_takes_what_is_printed(program: Path, interface: str) -> None:
    """The same bytes, in memory at an address, by the same interface: the section then describes the code."""
    elf = open_elf(program)
    loaded = loaded_section(str(program), "little", elf.segments, 0x10_0000_0000, elf)
    found = sframe_of(elf)
    assert loaded is not None
    assert found is not None
    at = 0x7000_0000
    data = INTERFACES[interface](loaded, at)
    caller = Caller(Registry(), Pieces({at: data.ljust(8192, b"\0"), loaded.sframe_start: bytes(found[0])}), AMD64)
    if interface == "sframe":
        sframe_register(caller, at, len(data))
    elif interface == "prctl":
        prctl_register(caller, *(int.from_bytes(data[place : place + 8], "little") for place in (0, 8, 16)))
    else:
        codectl(caller, CodeOption.REGISTER_ELF, at, 80)
    main = next(functions_named(elf, b"main")).address
    region = caller.registry.find(main + 0x10_0000_0000)
    assert region is not None
    answer = region.describer.look_up(main + 0x10_0000_0000)
    assert answer is not None
    assert answer.rule.cfa is not None
    assert answer.rule.cfa.register == AMD64.sp
    if interface == "codectl":
        assert region.code_object is not None
        link = debug_link_of(elf)
        assert link is not None
        assert region.code_object[2:] == (str(program).encode(), bytes([1, 2, 3, 4, 5]), link[0].encode(), link[1])


@pytest.mark.parametrize(
    "segments",
    [
        [Phdr(PT.GNU_SFRAME, PF.R, 0, 8, 8, 8, 8, 8)],
        [Phdr(PT.GNU_SFRAME, PF.R, 0, 8, 8, 8, 8, 8), Phdr(PT.LOAD, PF.X, 0, 2**64 - 8, 0, 8, 9, 8)],
        [Phdr(PT.GNU_SFRAME, PF.R, 0, 2**64 - 8, 8, 8, 9, 8), Phdr(PT.LOAD, PF.X, 0, 8, 0, 8, 9, 8)],
    ],
)
def test_segments_that_cannot_be(segments: list[Phdr]) -> None:
    with pytest.raises(sframegen.FormatError):
        loaded_section("a", "little", segments)
    assert loaded_section("a", "little", segments[1:]) is None


# --- Calls of a kernel ------------------------------------------------------------------------------------------------------------


class Kernel:
    """Stands for the C library: remembers what was asked, reads the structure as a kernel would, fails with a number."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.asked: list[tuple[int, ...]] = []
        self.structs: list[bytes] = []

    def syscall(self, *words: ctypes.c_ulong) -> int:
        numbers = [word.value for word in words]
        self.asked.append(tuple(numbers))
        size_at = 2 if len(numbers) == 3 else 3
        if len(numbers) > size_at and numbers[size_at]:
            self.structs.append(ctypes.string_at(numbers[size_at - 1], numbers[size_at]))
        ctypes.set_errno(self.number)
        return -1 if self.number else 0

    def prctl(self, option: ctypes.c_int, *words: ctypes.c_ulong) -> int:
        self.asked.append((option.value, *(word.value for word in words)))
        ctypes.set_errno(self.number)
        return -1 if self.number else 0


def test_calls_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(system, "_LIBC", kernel)
    monkeypatch.setattr(system, "has_call", lambda _: True)
    system.sframe_register(SframeSetup(1, 2, 3, 4), number=8)
    system.sframe_unregister(5, number=9)
    system.codectl(7, CodeOption.REGISTER_JIT, b"structure")
    system.codectl(7, CodeOption.UNREGISTER, 0x1234)
    system.prctl(77, 1, 2, 3)
    system.prctl(78, 1)
    structs = [decode_struct(SframeSetup, data, system.ORDER) for data in kernel.structs[:2]]
    assert structs == [SframeSetup(1, 2, 3, 4), SframeSetup(5, 0, 0, 0)]
    assert kernel.structs[2] == b"structure"
    assert [asked[0] for asked in kernel.asked] == [8, 9, 7, 7, 77, 78]
    assert kernel.asked[3:] == [(7, 2, 0x1234, 0, 0), (77, 1, 2, 3, 0), (78, 1, 0, 0, 0)]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_what_a_kernel_answers_is_told(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(system, "_LIBC", Kernel(number))
    monkeypatch.setattr(system, "has_call", lambda _: True)
    calls: tuple[Callable[[], None], ...] = (
        lambda: system.sframe_register(SframeSetup(0, 0, 0, 0), 4000),
        lambda: system.prctl(4000, 0, 0, 0),
        lambda: system.codectl(4000, CodeOption.UNREGISTER, 0),
    )
    for ask in calls:
        with pytest.raises(RegistryError) as caught:
            ask()
        assert caught.value.errno == number
        assert ("this kernel has no system call 4000" in str(caught.value)) == (number == errno.ENOSYS)


def test_a_number_that_no_kernel_has() -> None:
    with pytest.raises(RegistryError) as caught:
        system.sframe_register(SframeSetup(0, 0, 0, 0), number=100_000)
    assert caught.value.errno == errno.ENOSYS


@pytest.mark.parametrize("call", ["sframe_register", "codectl"])
def test_a_number_of_another_call_is_not_called(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """472 is fchroot in Linux 7.3, which would be called with an address."""
    kernel = Kernel()
    monkeypatch.setattr(system, "_LIBC", kernel)
    monkeypatch.setattr(system, "has_call", lambda name: name != call)
    ask: dict[str, Callable[[], None]] = {
        "codectl": lambda: system.codectl(472, CodeOption.UNREGISTER, 0),
        "sframe_register": lambda: system.sframe_register(SframeSetup(1, 2, 3, 4), number=472),
    }
    with pytest.raises(RegistryError, match=f"{call}: this kernel has no such system call") as caught:
        ask[call]()
    assert caught.value.errno == errno.ENOSYS
    assert kernel.asked == []


@pytest.mark.parametrize("has", [True, False, None])
def test_a_call_is_made_unless_the_kernel_names_all_and_not_this(monkeypatch: pytest.MonkeyPatch, has: bool | None) -> None:
    kernel = Kernel(errno.EINVAL)
    monkeypatch.setattr(system, "_LIBC", kernel)
    monkeypatch.setattr(system, "has_call", lambda _: has)
    with pytest.raises(RegistryError) as caught:
        system.codectl(463, CodeOption.UNREGISTER, 0)
    assert caught.value.errno == (errno.ENOSYS if has is False else errno.EINVAL)
    assert bool(kernel.asked) == (has is not False)


@pytest.mark.parametrize(
    ("types", "symbols", "expected"),
    [
        (b"\0int\0__x64_sys_codectl\0", None, True),
        (b"\0codectl\0__x64_sys_codectl2\0__pfx___x64_sys_codectl\0", None, False),
        (None, b"0000000000000000 T __arm64_sys_codectl\n", True),
        (None, b"0 T __s390x_sys_codectl\n", True),
        (b"\0int\0", b"0 T __x64_sys_codectl\n", True),
        (None, b"0 T __pfx___x64_sys_codectl\n0\n\n", False),
        (None, b"", None),
        (None, None, None),
    ],
)
def test_where_a_kernel_names_its_calls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, types: bytes | None, symbols: bytes | None, expected: bool | None
) -> None:
    for name, data in (("BTF", types), ("SYMBOLS", symbols)):
        monkeypatch.setattr(system, name, tmp_path / name)
        if data is not None:
            (tmp_path / name).write_bytes(data)
    assert system.has_call("codectl") is expected


def test_this_kernel_names_a_call_that_every_kernel_has() -> None:
    assert system.has_call("openat") in (True, None)
    assert not system.has_call("no_such_call")
