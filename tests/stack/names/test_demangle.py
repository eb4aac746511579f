"""Names of C++, some of which are not to be read."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from sframegen.elf.file import open_elf
from sframegen.stack.names import demangle as module
from sframegen.stack.names import file_names
from sframegen.stack.names.demangle import begin_demangling, demangle, demangle_all
from sframegen.stack.names.file_names import FileNames, NamedFunction

if TYPE_CHECKING:
    from tests.support.peers import Compiler

pytestmark = pytest.mark.skipif(module._functions() is None, reason="no libstdc++ on this machine")


def bomb(levels: int) -> str:
    """A function of structures, each of which has the one before as its argument, twice: its text doubles with each."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1AIiE" + "".join(f"S_IS{digit}_S{digit}_E" for digit in digits[:levels])


def test_names() -> None:
    assert demangle("_ZNSt6vectorIiSaIiEE9push_backEOi") == "std::vector<int, std::allocator<int> >::push_back(int&&)"
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


def test_the_library_is_loaded_for_mangled_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_functions", lambda: pytest.fail("libstdc++ takes longer to load than all stacks to print"))
    names = ["main", "", "z_Z", "_RNvC7example4main"]
    assert [*demangle_all(names).values()] == ["main", "", "z_Z", "example::main"]


def test_the_process_may_begin_before_the_first_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the memory of this one is small, which it would keep; those after it are no copies of this one, either."""
    monkeypatch.setattr(module, "_DEMANGLER", demangler := module._Demangler())
    begin_demangling()
    with monkeypatch.context() as later:
        later.setattr(os, "fork", lambda: pytest.fail("another process"))
        assert demangle_all(["_Z1fv"]) == {"_Z1fv": "f()"}
        assert demangle_all([bomb(30), "_Z1gv"]) == {bomb(30): bomb(30), "_Z1gv": "g()"}
    assert (demangler._deaths, demangler._ancestor._forker is None) == (1, False)
    demangler.close()


def test_a_process_that_was_killed_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DEMANGLER", demangler := module._Demangler())
    pid = demangler._next().pid
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert demangle_all(["_Z1gv"]) == {"_Z1gv": "g()"}
    demangler.close()


def test_names_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may live for days, and looks for garbage as rarely as the command does."""
    module._demangled([b"_Z1fv"])
    monkeypatch.setattr("ctypes.CDLL", lambda _: pytest.fail("a class for each name"))
    assert module._demangled([b"_Z1fv", b"_Z1gv"]) == [b"f()", b"g()"]


@pytest.mark.dear
def test_names_that_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay unchanged; no process is left running, and other names are read as long as not too many are of that kind."""
    started = []
    fork = os.fork

    def forking() -> int:
        started.append(fork())
        return started[-1]

    monkeypatch.setattr(os, "fork", forking)
    demangler = module._Demangler()
    monkeypatch.setattr(module, "_DEMANGLER", demangler)
    demangle.cache_clear()
    assert demangle(bomb(2)) == "f(A<int>, A<A<int>, A<int> >, A<A<A<int>, A<int> >, A<A<int>, A<int> > >)"
    assert demangle(bomb(30)) == bomb(30)
    assert demangle("_Z1gv") == "g()"
    for levels in range(26, 36):
        assert demangle(bomb(levels)) == bomb(levels)
    demangler.close()
    assert 1 <= len(started) <= module.MAX_DEATHS
    for pid in started:
        with pytest.raises(ChildProcessError):
            os.waitpid(pid, 0)


def test_the_process_holds_nothing_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a profiler has open, its maps in the kernel among that, is closed with the profiler."""
    monkeypatch.setattr(module, "_DEMANGLER", demangler := module._Demangler())
    read, write = os.pipe()
    demangle_all(["_Z1gv"])
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b""  # it would wait for as long as another process has the other end
    demangler.close()


def test_many_names_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends the process costs no other its text, and more names than a pipe holds make nobody wait."""
    monkeypatch.setattr(module, "_DEMANGLER", demangler := module._Demangler())
    long = "x" * 900
    names = [f"_Z900{long}{a}{b}" for a in "abcdefhijl" for b in "abcdefhijl"]
    count = len(names)
    names += ["_Z1gv", bomb(30), "_Z1hv", "main", "_RNvC7example4main"]
    names += [f"_Z{len(name)}{name}v" for name in (f"f{number}" for number in range(5000))]
    found = demangle_all(names)
    demangler.close()
    assert [*found] == names
    assert [found[name] for name in names[count:][:5]] == ["g()", bomb(30), "h()", "main", "example::main"]
    assert [found[name] for name in names[count + 5 :]] == [f"f{number}()" for number in range(5000)]
    assert all(found[name].startswith(f"{long}(") for name in names[:count])


def test_names_of_a_table_of_go_are_demangled_too(compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in Go may hold C++, as its detector of races is."""

    class Table:
        def function_at(self, _address: int) -> NamedFunction:
            return NamedFunction("_ZN6__tsan4InitEv", 0x10)

    monkeypatch.setattr(file_names, "_go_table", lambda _file: Table())
    elf = open_elf(compile_c("int main(void) { return 0; }", "-s"))
    learned = FileNames(elf)
    learned.learn([0x18])
    for names in (learned, FileNames(elf)):
        assert names.at(0x18) == ("__tsan::Init()", 0x10)
    assert FileNames(elf, demangled=False).at(0x18).name == "_ZN6__tsan4InitEv"
