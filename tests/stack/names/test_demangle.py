"""Names of C++, some of which are not to be read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from sframegen.elf.file import open_elf
from sframegen.stack.names import demangle as module
from sframegen.stack.names import gopclntab
from sframegen.stack.names.demangle import begin_demangling, demangle_all
from sframegen.stack.names.file_names import FileNames, NamedFunction
from tests.support.peers import Compiler

pytestmark = pytest.mark.skipif(not module.can_demangle(), reason="no pycxxfilt here")


def demangle(name: str) -> str:
    return demangle_all([name])[name]


@pytest.fixture
def demangler(monkeypatch: pytest.MonkeyPatch) -> Iterator[module._Demangler]:
    monkeypatch.setattr(module, "_DEMANGLER", made := module._Demangler())
    yield made
    made.close()


def bomb(levels: int) -> str:
    """A function of structures, each of which has the one before as its argument, twice: its text doubles with each."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1AIiE" + "".join(f"S_IS{digit}_S{digit}_E" for digit in digits[:levels])


def test_names() -> None:
    assert demangle("_ZNSt6vectorIiSaIiEE9push_backEOi") == "std::vector<int, std::allocator<int>>::push_back(int&&)"
    assert demangle("_ZN4core3fmt5write17h0123456789abcdefE") == "core::fmt::write"
    hashed = "17h0123456789abcdefE"
    assert (
        demangle(f"_ZN50_$LT$program..Square$u20$as$u20$program..Shape$GT$4area{hashed}")
        == "<program::Square as program::Shape>::area"
    )
    assert demangle(f"_ZN3one28_$u7b$$u7b$closure$u7d$$u7d${hashed}") == "one::{{closure}}"
    assert demangle(f"_ZN10a$u0a$b$XX{hashed}") == "a$u0a$b$XX", "neither lines nor signs that are none"
    assert demangle("_ZN3one5a$LT$E") == "one::a$LT$", "not Rust"
    assert [demangle(name) for name in ("main", "_Z", "_Zq")] == ["main", "_Z", "_Zq"]


def test_names_of_rust() -> None:
    names = {
        "_RNvC7example4main": "example::main",
        "_RNvCs1234_7example4main": "example::main",
        "_RNvXC5crateNtB2_1SNtB2_1T1f": "<crate::S as crate::T>::f",
        "_RNCNvC5crate4mains_0": "crate::main::{closure#1}",
        "_RINvC1c1fKj1f_RShE": "c::f::<31, &[u8]>",
    }
    names |= {name: name for name in ("_R", "_RNvC1c9f", "_RNvB_1f")}
    assert demangle_all([*names]) == names


def test_no_process_begins_for_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEMANGLER", None)
    assert [*demangle_all(["main", "", "z_Z", "?f@@YAXXZ"]).values()] == ["main", "", "z_Z", "?f@@YAXXZ"]


def test_without_the_library_names_stay_mangled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_demangle", lambda: False)
    monkeypatch.setattr(module, "_DEMANGLER", None)
    begin_demangling()
    assert demangle_all(["_Z1fv", "_RNvC7example4main"]) == {"_Z1fv": "_Z1fv", "_RNvC7example4main": "_RNvC7example4main"}


def test_the_process_may_begin_before_the_first_name(demangler: module._Demangler, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the memory of this one is small, which it would keep; those after it are no copies of this one, either."""
    begin_demangling()
    with monkeypatch.context() as later:
        later.setattr(os, "fork", lambda: pytest.fail("another process"))
        assert demangle_all(["_Z1fv"]) == {"_Z1fv": "f()"}
        assert demangle_all([bomb(30), "_Z1gv"]) == {bomb(30): bomb(30), "_Z1gv": "g()"}
    assert (demangler._deaths, demangler._forker.is_running) == (1, True)


def test_a_process_that_was_killed_is_replaced(demangler: module._Demangler) -> None:
    pid = demangler._running_process().pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert demangle_all(["_Z1gv"]) == {"_Z1gv": "g()"}


@pytest.mark.parametrize(
    "name",
    [
        "_Z1f" + "P" * (1 << 20) + "i",
        "_Z1f" + "1AI" * 20_000 + "i" + "E" * 20_000,
        "_Z1f" + "PFv" * 15_000 + "i" + "E" * 15_000,
        "_ZN" + "1a" * 40_000 + "Ev",
        "_Z1fIiEv" + "S_" * 30_000,
        "_Z1fIX" + "ng" * 100_000 + "Li1EEEvv",
        "_Z" + "9" * 50_000,
        "_R" + "Nv" * 20_000 + "C1a" + "1b" * 20_000,
        "_RINvC1c1f" + "S" * 100_000 + "hE",
        "_RINvC1c1fFGzzzzzzzzz_EuE",
        "_Z1f\0v",
        "_Z1f\udc80v",
    ],
    ids=lambda name: repr(name[:16]),
)
@pytest.mark.usefixtures("demangler")
def test_hostile_names_stay_mangled(name: str) -> None:
    """Deep, long, endless: others have their texts."""
    assert demangle_all([name, "_Z1gv"]) == {name: name, "_Z1gv": "g()"}


@pytest.mark.dear
def test_names_that_fill_the_memory(demangler: module._Demangler, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay unchanged; no process is left running, and other names are read as long as not too many are of that kind."""
    started = []
    fork = os.fork

    def forking() -> int:
        started.append(fork())
        return started[-1]

    monkeypatch.setattr(os, "fork", forking)
    assert demangle(bomb(2)) == "f(A<int>, A<A<int>, A<int>>, A<A<A<int>, A<int>>, A<A<int>, A<int>>>)"
    assert demangle(bomb(30)) == bomb(30)
    assert demangle("_Z1gv") == "g()"
    for levels in range(26, 36):
        assert demangle(bomb(levels)) == bomb(levels)
    demangler.close()
    assert 1 <= len(started) <= module.MAX_DEATHS
    for pid in started:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)


@pytest.mark.usefixtures("demangler")
def test_the_process_holds_nothing_of_its_parent() -> None:
    """What a profiler has open, its maps in the kernel among that, is closed with the profiler."""
    read, write = os.pipe()
    demangle_all(["_Z1gv"])
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b""  # it would wait for as long as another process has the other end


@pytest.mark.usefixtures("demangler")
def test_many_names_at_once() -> None:
    """One that ends the process costs no other its text, and more names than a pipe holds make nobody wait."""
    long = "x" * 900
    names = [f"_Z900{long}{a}{b}" for a in "abcdefhijl" for b in "abcdefhijl"]
    count = len(names)
    names += ["_Z1gv", bomb(30), "_Z1hv", "main", "_RNvC7example4main"]
    names += [f"_Z{len(name)}{name}v" for name in (f"f{number}" for number in range(5000))]
    found = demangle_all(names)
    assert [*found] == names
    assert [found[name] for name in names[count:][:5]] == ["g()", bomb(30), "h()", "main", "example::main"]
    assert [found[name] for name in names[count + 5 :]] == [f"f{number}()" for number in range(5000)]
    assert all(found[name].startswith(f"{long}(") for name in names[:count])


def test_names_of_a_table_of_go_are_demangled_too(compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in Go may hold C++, as its detector of races is."""
    table = SimpleNamespace(function_at=lambda _: NamedFunction("_ZN6__tsan4InitEv", 0x10))
    monkeypatch.setattr(gopclntab, "find_go_table", lambda _file: table)
    elf = open_elf(compile_c("int main(void) { return 0; }", "-s"))
    learned = FileNames(elf)
    learned.load_names([0x18])
    for names in (learned, FileNames(elf)):
        assert names.at(0x18) == ("__tsan::Init()", 0x10)
    assert FileNames(elf, demangled=False).at(0x18).name == "_ZN6__tsan4InitEv"
