"""What pages show is what happens, except numbers on a machine that is not the one shown. Each page has a directory of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent
# Commands and what they print; Python, and in the block behind it what it prints; files.
EXAMPLE = re.compile(
    r"^```console\n(?P<console>.*?)^```$"
    r"|^```python\n(?P<python>.*?)^```$(?:\n\n^```text\n(?P<text>.*?)^```$)?"
    r"|^Save this as `(?P<name>[\w.]+)`[^\n]*\n\n^```\w+\n(?P<file>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
PAGES = ("README.md", "docs/gates.md", "docs/library.md", "docs/tutorial.md")  # that can be typed from top to bottom


def shape(line: str) -> str:
    """Numbers, rules and where files are, are the machine's."""
    return re.sub(r"0x[0-9a-f]+|(?<=-) /\S*/|[0-9][0-9,.]*", "N", line.partition(" = ")[0]).rstrip()


def assert_shown(command: str, printed: str, shown: list[str], *, exactly: bool) -> None:
    """`...` at the end stands for more lines."""
    lines = printed.splitlines()
    if shown[-1:] == ["..."]:
        shown = shown[:-1]
        lines = lines[: len(shown)]
    if not exactly:
        lines, shown = ([shape(line) for line in some] for some in (lines, shown))
    assert lines == shown, f"{command}\n{printed}"


def is_about_this_machine(text: str) -> bool:
    """Whether a page is about bash, and README shows the size of this machine's: then all its numbers are those printed here."""
    bash = Path("/bin/bash")
    return str(bash) in text and f" {bash.stat().st_size:,} bytes" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_examples_do_what_the_page_shows(page: str, tmp_path: Path) -> None:
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

    def run(*command: str) -> str:
        done = subprocess.run(
            command, check=False, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.returncode == 0, (command[-1], done.stdout)
        return done.stdout

    text = (ROOT / page).read_text()
    exactly = is_about_this_machine(text)
    for example in EXAMPLE.finditer(text):
        if example["name"]:
            (tmp_path / example["name"]).write_text(example["file"])
        elif example["python"]:
            printed = run(sys.executable, "-W", "error", "-c", example["python"])
            if example["text"]:
                assert_shown(example["python"], printed, example["text"].splitlines(), exactly=exactly)
        else:
            for command in re.split(r"^\$ ", example["console"], flags=re.MULTILINE)[1:]:
                line, *shown = command.splitlines()
                assert_shown(line, run("sh", "-c", line), shown, exactly=exactly)


def test_what_readme_says_of_speed_was_measured() -> None:
    figures = json.loads((ROOT / "docs/reports/performance.json").read_text())["figures"]
    seconds = {one["what"]: one["value"] for one in figures if (one["part"], one["file"], one["of"]) == ("time", "libLLVM", "")}
    shares = [f"{seconds[name] / seconds['readelf -wF']:.2f}" for name in ("add-section --no-verify", "add-section")]
    [said] = re.findall(r"\*\*Fast\.\*\* .*?(?=\n\n)", (ROOT / "README.md").read_text(), re.DOTALL)
    assert re.findall(r"\b[0-9]\.[0-9]+", said) == shares
