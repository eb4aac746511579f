"""corpus/projects: its manifest, the making and comparing of builds on a project of one file, and its report."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from corpus.projects.badnews import PROJECT, News
from corpus.projects.build import build
from corpus.projects.judge import Judged, compared
from corpus.projects.linkers import NONE, SECTION, Cell
from corpus.projects.manifest import MANIFEST, Project, projects
from corpus.projects.report import markdown
from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.full]

SMALL = Project(
    name="small",
    package="small",
    suite="trixie",
    version="1",
    sha256="0",
    system="make",
    sources="*.c",
    build="make",
    test="./prog && echo '3 passed'",
    document="build-systems.md#x",
    changed={"before": "touch step", "build": "make CC='gcc -v'"},
    outputs=1,
    passed=r"(\d+) passed",
)


@pytest.fixture
def made(tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        directory.mkdir()
        (directory / "prog.c").write_text("int main(void) { return 0; }\n")
        (directory / "Makefile").write_text("prog: prog.c\n")
        return directory

    return make


def test_the_manifest_names_projects_with_the_lines_of_a_document() -> None:
    found = projects(MANIFEST.read_text())
    assert PROJECT in {project.name for project in found}
    for project in found:
        assert len(project.sha256) == 64, project.name
        document, _, heading = project.document.partition("#")
        text = (ROOT / "docs" / document).read_text()
        assert f"## {heading.replace('-', ' ')}" in text.lower(), project.name
        commands = " ".join(project.command(which, with_step=True) for which in ("before", "configure", "build"))
        assert "sframegen" in commands.lower()


@pytest.mark.parametrize("line", ["colour = 'red'", "with.install = 'make install'"])
def test_what_the_manifest_may_not_have(line: str) -> None:
    text = MANIFEST.read_text()
    first = text[text.index("[") :].split("\n\n")[0]
    with pytest.raises(ValueError, match=r"colour|install"):
        projects(f"{first}\n{line}\n")


def test_a_build_and_its_second_build(made: Callable[[], Path]) -> None:
    plain = build(SMALL, made(), os.environ, with_step=False)
    assert (list(plain.outputs), plain.passed, plain.changed, plain.problems) == (["prog"], 3, set(), [])
    with_step = build(SMALL, directory := made(), os.environ, with_step=True)
    assert compared(plain, with_step) == []
    assert (directory / "step").exists()


def test_what_is_a_difference(made: Callable[[], Path]) -> None:
    plain = build(SMALL, made(), os.environ, with_step=False)
    again = replace(SMALL, changed={"build": "make -B; echo sframegen: warning: x", "test": "echo 2 passed; cp prog more"})
    assert compared(plain, build(again, made(), os.environ, with_step=True)) == [
        "said: sframegen: warning: x",
        "said: sframegen: warning: x",
        "other outputs: more",
        "2 tests passed, 3 without the step",
        "a second build changes prog",
    ]


@pytest.mark.parametrize(
    ("change", "problem"), [({"test": "false"}, "test: exit status 1"), ({"outputs": 2}, "1 linked files, 2 were to be")]
)
def test_a_problem_of_the_build(made: Callable[[], Path], change: dict[str, object], problem: str) -> None:
    [said] = build(replace(SMALL, **change), made(), os.environ, with_step=False).problems  # type: ignore[arg-type]
    assert said.startswith(problem)


def test_the_report_s_tables() -> None:
    judged = Judged(SMALL, "1", 1, 2, 3000, 40000, 5, 1, 1, (10.4, 11.6), differences=["prog: unlike"])
    cells = [
        Cell("gold 2", "program", SECTION),
        Cell("gold 2", "-static", "no room"),
        Cell("lld 9", "program", NONE),
        Cell("lld 9", "-static", "no room"),
    ]
    text = markdown([judged], cells, [News("killed", fatal=True, status=1, said="sframegen: x", program="does not exist")], "a run")
    for line in (
        "One run: a run. 1 differences.",
        "- small: prog: unlike",
        "| small 1 | make | 1 | 2 | 3,000 | 40,000 | 5 | 1 | 1 | 10 | 12 | 1 differences |",
        "touch step",
        "| gold 2 | section | warning 1 |",
        "| lld 9 | does not link | warning 1 |",
        "1. `no room`",
        "| killed | yes | 1 | `sframegen: x` | does not exist |",
    ):
        assert line in text.splitlines(), line
