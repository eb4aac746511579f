"""The site and the man pages: complete, and with links that lead somewhere also for those who read docs/ as it is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from inspect import cleandoc
from typing import TYPE_CHECKING

import click
import commands
import pytest

from sframegen.cli.commands import COMMANDS
from tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.once, pytest.mark.full]

DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if path.parent.name != "reference")
WRITTEN = [*ROOT.glob("*.md"), *PAGES]
LISTED = re.compile(r"^- \[([^]]+)\]\(([^)]+)\): ", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


LISTS = ("index.md", "contributing.md", "reports.md", "upstream.md")


def listed_pages() -> list[tuple[str, str]]:
    """Title and page, as the side bar lists them."""
    return [pair for name in LISTS for pair in LISTED.findall((DOCS / name).read_text())]


def options_of(name: str) -> Iterator[tuple[str, str]]:
    """Each option's names, and the first words of its help."""
    context = commands.context_of(name)
    for option in context.command.get_params(context):
        if isinstance(option, click.Option):
            yield from ((flag, (option.help or "").split()[0]) for flag in option.opts)


def test_every_page_is_listed_once() -> None:
    listed = [page for _title, page in listed_pages()]
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in PAGES if path.name != "index.md")


def test_pages_have_the_titles_that_the_lists_give() -> None:
    listed = {page: title for title, page in listed_pages()}
    assert {page: (DOCS / page).read_text().partition("\n")[0].removeprefix("# ") for page in listed} == listed


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(path: Path) -> None:
    assert [link for link in LINK.findall(path.read_text()) if not (path.parent / link).is_file()] == []


def test_a_page_for_each_command(tmp_path: Path) -> None:
    (tmp_path / "gone.md").touch()
    commands.write_reference(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {commands.PROGRAM, "python", *COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_reference_has_every_option_and_paragraph(name: str) -> None:
    page = "\n".join(commands.command_page(name)).replace("`", "").replace("\\", "")
    flags = [flag for flag, _help in options_of(name)]
    assert {"-h", "--help"} <= set(flags)
    for flag in flags:
        assert re.search(rf"^(?:\S+, )*{flag}\b", page, re.MULTILINE)
    for paragraph in cleandoc(commands.context_of(name).command.help or "").replace("`", "").replace("\b\n", "").split("\n\n"):
        assert paragraph in page


def test_the_page_of_a_group_has_its_commands() -> None:
    page = "\n".join(commands.command_page("fleet"))
    for text in (
        "`sframegen fleet run [OPTIONS] SOURCE...`",
        "`--scheduler ADDRESS`",
        "`sframegen fleet report [OPTIONS] DIR`",
        "`-o, --output FILE`",
    ):
        assert text in page


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("use --json or -o OUT", "use `--json` or `-o` OUT"),
        ("a `b --c` d", "a `b --c` d"),
        ("[x] *p <q>", r"\[x\] \*p \<q\>"),
        ("as-is, x--y", "as-is, x--y"),
    ],
)
def test_text_becomes_markdown(text: str, markdown: str) -> None:
    assert commands.marked(text) == markdown


@pytest.fixture(scope="module")
def man_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("sphinx", "myst_parser"):
        if find_spec(module) is None:
            pytest.skip(f"no {module} in this environment: use make test-all")
    folder = tmp_path_factory.mktemp("man")
    options = ("--fail-on-warning", "--quiet", "--doctree-dir", folder / "doctrees", "--builder", "man")
    subprocess.run([sys.executable, "-P", "-m", "sphinx", *options, DOCS, folder], check=True)
    return folder


def test_man_pages_are_there(man_pages: Path) -> None:
    names = {path.name for path in man_pages.glob("*.[0-9]")}
    assert names == {"sframegen.1", *(f"sframegen-{name}.1" for name in COMMANDS)}


@pytest.mark.parametrize("name", ["sframegen", *(f"sframegen-{name}" for name in COMMANDS)])
def test_man_page_has_no_empty_link(man_pages: Path, name: str) -> None:
    assert re.findall(r".*<\s*>.*", (man_pages / f"{name}.1").read_text()) == []


def test_the_first_man_page_lists_each_command(man_pages: Path) -> None:
    listed = re.findall(r"^\.B ([a-z\\-]+)$", (man_pages / "sframegen.1").read_text().partition(".SH OPTIONS")[0], re.MULTILINE)
    assert [name.replace("\\", "") for name in listed] == list(COMMANDS)


@pytest.mark.parametrize("name", ["sframegen", *COMMANDS])
def test_man_page_shows_every_option_and_groff_has_no_complaint(man_pages: Path, name: str) -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff")
    page = man_pages / ("sframegen.1" if name == commands.PROGRAM else f"sframegen-{name}.1")
    command = ("groff", "-k", "-man", "-ww", "-Tutf8", "-P-cbou")
    done = subprocess.run([*command, page], check=True, capture_output=True, encoding="utf-8")
    assert done.stderr == ""
    text = done.stdout.replace("\N{HYPHEN}", "-")
    line = COMMANDS.get(name, "").rstrip(".")
    assert " ".join(line.split()[:4]) in " ".join(text.split())
    for flag, word in options_of(name):
        assert re.search(rf"^ +(?:\S+, )*{flag}\b.*\n* +{re.escape(word)}", text, re.MULTILINE), flag
