"""The runner on a package of three functions: what its tests notice, what they do not, and what ends by a limit."""

from __future__ import annotations

import sysconfig
import venv
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.full]

MODULE = """
def added(a, b):
    return a + b

def is_positive(a):
    return a > 0

def counted(n):
    while n > 0:
        n -= 1
    return n

def kept(n):
    found = []
    while n > 0:
        found += [bytes(1048576)]
        n -= 1
    return len(found)
"""
TESTS = """
import pytest
from tiny.module import added, counted, is_positive, kept

def test_all_but_the_limit():
    assert added(1, 2) == 3
    assert is_positive(5) and not is_positive(-5)
    assert counted(7) == 0
    assert kept(2) == 2

@pytest.mark.full
def test_what_takes_long():
    assert not is_positive(0)
"""
CONFTEST = """
from hypothesis import settings
settings.register_profile("mutations")
"""


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[Path, Path]:
    """(an environment with a package, the root of its tests)."""
    for tool in ("mutmut", "libcst"):
        if find_spec(tool) is None:
            pytest.skip(f"no {tool}: make .venv/mutations-tools")
    environment, root = tmp_path / "environment", tmp_path / "root"
    venv.create(environment, symlinks=True)
    [packages] = environment.glob("lib/python3*/site-packages")
    (packages / "tiny").mkdir()
    (packages / "tiny/__init__.py").touch()
    (packages / "tiny/module.py").write_text(MODULE)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    (root / "tests/tiny").mkdir(parents=True)
    (root / "tests/tiny/test_tiny.py").write_text(TESTS)
    (root / "conftest.py").write_text(CONFTEST)
    return environment, root


def test_what_the_tests_notice(tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.mutations import judge as judges  # noqa: PLC0415 - they need mutmut
    from tests.mutations.draw import draw  # noqa: PLC0415

    environment, root = tiny
    monkeypatch.setattr(judges, "SPARE_SECONDS", 1)
    monkeypatch.setattr(judges, "MEMORY_BYTES", 1 << 29)
    judge = judges.Judge(environment, root, tmp_path / "judge")
    judge.measure("tiny")
    mutants = {(mutant.line, mutant.after.strip()): mutant for mutant in draw(judge.packages, ["tiny/module.py"], 100, 1)[0]}
    assert judge.judge(mutants[3, "return a - b"], "tiny") == "killed"
    assert judge.judge(mutants[6, "return a >= 0"], "tiny") == "survived"
    assert judge.judge(mutants[10, "n += 1"], "tiny") == "hung"
    assert judge.judge(mutants[17, "n += 1"], "tiny") == "killed"  # out of memory
    assert (judge.packages / "tiny/module.py").read_text() == MODULE
    assert (judges.packages_of(environment) / "tiny/module.py").read_text() == MODULE


def test_tests_that_fail_already_judge_nothing(tiny: tuple[Path, Path], tmp_path: Path) -> None:
    from tests.mutations import judge as judges  # noqa: PLC0415

    environment, root = tiny
    (root / "tests/tiny/test_other.py").write_text("def test_that_fails():\n    assert not 'right'\n")
    with pytest.raises(judges.BaselineError, match="tests/tiny fails without a mutant"):
        judges.Judge(environment, root, tmp_path / "judge").measure("tiny")


def test_the_table_goes_into_a_document(
    tiny: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.mutations import __main__ as command  # noqa: PLC0415

    environment, root = tiny
    (packages,) = environment.glob("lib/python3*/site-packages")
    (packages / "tiny/module.py").write_text("def is_positive(a):\n    return a > 0\n")
    (root / "tests/tiny/test_tiny.py").write_text(
        "from tiny.module import is_positive\n\ndef test_most():\n    assert is_positive(5)\n    assert not is_positive(-5)\n"
    )
    document = tmp_path / "page.md"
    document.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    arguments = ["--environment", environment, "--root", root, "--room", "tiny", "--count", 10, "--seed", 7, "--docs", document]
    monkeypatch.setattr("sys.argv", ["mutations", *map(str, arguments)])
    command.main()
    lines = document.read_text().splitlines()
    assert [lines[0], lines[1], lines[-2], lines[-1]] == ["before", command.BEGIN, command.END, "after"]
    # `>=` and `> 1`
    assert "| `tiny` | `tests/tiny` | 2 | 0 | 0 | 0% |" in lines
    assert "| `tiny/module.py:2` | `` return a > 0 `` | `` return a >= 0 `` |" in lines
    assert "2 of 2 mutants, seed 7" in lines[-3]
    assert "-    return a > 0\n+    return a >= 0\n" in capsys.readouterr().out


SOURCE = '''
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1 + 1


@decorated(1 + 1)
def f(a: "1 + 1", b: Literal[1] = 0) -> Literal[2]:
    """1 + 1"""
    if cython.compiled and a < b:
        a = a + 1
    fits = cython.compiled and a < b
    if fits:
        a = a + 1
    elif a:
        return zip(a, b, strict=True)
    raise ValueError(f"{a + 1}", a)
'''


def test_what_can_change_no_meaning_is_not_drawn(tmp_path: Path, tiny: tuple[Path, Path]) -> None:
    from tests.mutations.draw import draw  # noqa: PLC0415

    assert tiny
    (tmp_path / "module.py").write_text(SOURCE)
    drawn, possible = draw(tmp_path, ["module.py"], 100, 1)
    assert len(drawn) == possible
    assert [mutant.before for mutant in drawn] == ['def f(a: "1 + 1", b: Literal[1] = 0) -> Literal[2]:']


def test_no_division_is_made(tmp_path: Path, tiny: tuple[Path, Path]) -> None:
    """Of `*`, `//`, `%`: a TypeError would flatter the tests."""
    from tests.mutations.draw import draw  # noqa: PLC0415

    assert tiny
    (tmp_path / "module.py").write_text("def f(a, b):\n    a *= b\n    a //= b\n    return a * b, a // b, a % b, a / b, a + b\n")
    drawn, _ = draw(tmp_path, ["module.py"], 100, 1)
    assert sorted(mutant.after.strip() for mutant in drawn) == ["a = b", "a = b", "return a * b, a // b, a % b, a / b, a - b"]


def test_a_seed_draws_the_same_again(tiny: tuple[Path, Path]) -> None:
    from tests.mutations.draw import draw  # noqa: PLC0415

    [packages] = tiny[0].glob("lib/python3*/site-packages")
    drawn, possible = draw(packages, ["tiny/module.py"], 5, 1)
    assert len(drawn) == 5 < possible
    assert draw(packages, ["tiny/module.py"], 5, 1)[0] == drawn
    assert draw(packages, ["tiny/module.py"], 5, 2)[0] != drawn
    for mutant in drawn:
        changed = MODULE.split("\n")
        assert mutant.before.split("\n") == changed[mutant.line - 1 : mutant.line + mutant.before.count("\n")]
        assert mutant.text.count("\n") == MODULE.count("\n")
        assert mutant.text != MODULE
