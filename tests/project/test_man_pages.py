"""The man pages: complete, and groff has no complaint."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import click
import commands
import pytest

from sframegen.cli.commands import COMMANDS
from tests import ROOT

pytestmark = pytest.mark.full

PAGES = {commands.PROGRAM: f"{commands.PROGRAM}.1"} | {name: f"{commands.PROGRAM}-{name}.1" for name in COMMANDS}


def options_of(name: str) -> Iterator[tuple[str, str]]:
    """Each option's names, and the first words of its help."""
    context = commands.context_of(name)
    for option in context.command.get_params(context):
        if isinstance(option, click.Option):
            yield from ((flag, (option.help or "").split()[0]) for flag in option.opts)


@pytest.fixture(scope="module")
def man_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for module in ("sphinx", "myst_parser"):
        if find_spec(module) is None:
            pytest.skip(f"no {module} in this environment: use make test-all")
    folder = tmp_path_factory.mktemp("man")
    options = ("--fail-on-warning", "--quiet", "--doctree-dir", folder / "doctrees", "--builder", "man")
    subprocess.run([sys.executable, "-P", "-m", "sphinx", *options, ROOT / "docs", folder], check=True)
    return folder


def test_each_command_has_a_page_without_empty_links(man_pages: Path) -> None:
    pages = {path.name: path.read_text() for path in man_pages.glob("*.[0-9]")}
    assert pages.keys() == set(PAGES.values())
    assert [(name, link) for name, text in pages.items() for link in re.findall(r".*<\s*>.*", text)] == []
    listed = re.findall(r"^\.B ([a-z\\-]+)$", pages["sframegen.1"].partition(".SH OPTIONS")[0], re.MULTILINE)
    assert [name.replace("\\", "") for name in listed] == list(COMMANDS)


def test_man_pages_show_every_option_and_groff_has_no_complaint(man_pages: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("no groff")
    missing = []
    for name, page in PAGES.items():
        command = ("groff", "-k", "-man", "-ww", "-Tutf8", "-P-cbou", man_pages / page)
        done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
        assert done.stderr == "", name
        text = done.stdout.replace("\N{HYPHEN}", "-")
        line = COMMANDS.get(name, "").rstrip(".")
        assert " ".join(line.split()[:4]) in " ".join(text.split()), name
        shown = r"^ +(?:\S+, )*{}\b.*\n* +{}"
        options = [one for one in options_of(name) if not re.search(shown.format(one[0], re.escape(one[1])), text, re.MULTILINE)]
        missing += [(name, flag) for flag, _word in options]
    assert missing == []
