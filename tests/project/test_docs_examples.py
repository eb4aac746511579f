"""What pages show is what happens, except numbers on a machine that is not the one shown. Each page has a directory of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.kernel_events import needs_bpf

# Commands and what they print; Python, and in the block after it what it prints; files.
EXAMPLE = re.compile(
    r"^```console\n(?P<console>.*?)^```$"
    r"|^```python\n(?P<python>.*?)^```$(?:\n\n^```text\n(?P<text>.*?)^```$)?"
    r"|^Save this as `(?P<name>[\w.]+)`[^\n]*\n\n^```\w+\n(?P<file>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
# Pages whose examples can be typed from top to bottom; of the others, only what is typed, as their other examples are pieces.
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")) if EXAMPLE.search(path.read_text()))]
CONSOLE_ONLY = {f"docs/{name}.md" for name in ("backtrace", "detached", "index", "linking", "merging", "packaging", "strip")}
MARKS = {
    "docs/fleet.md": pytest.mark.full,
    "docs/kernels.md": pytest.mark.skipif(shutil.which("clang") is None, reason="no clang: install clang"),
    "docs/profile.md": needs_bpf,
}


def shape(line: str) -> str:
    """Numbers, rules, what is left out and where files are, are the machine's."""
    machines = r"\{.*\}|0x[0-9a-f]+|[0-9a-f]{16}\b|(?<=-) /\S*/|[0-9][0-9,.]*"
    return re.sub(machines, "N", line.partition(" = ")[0]).rstrip()


def assert_shown(command: str, printed: str, shown: list[str], *, exactly: bool) -> None:
    """`...` at the end stands for more lines."""
    lines, shown = ([re.sub(r"\.build-id/\S+", "N", line) for line in some] for some in (printed.splitlines(), shown))
    if not exactly:
        # How many frames a call takes is its libc's affair.
        lines, shown = ([shape(line) for line in some if "/libc.so.6" not in line] for some in (lines, shown))
    if shown[-1:] == ["..."]:
        shown = shown[:-1]
        lines = lines[: len(shown)]
    assert lines == shown, f"{command}\n{printed}"


def is_about_this_machine(text: str) -> bool:
    """True if a page is about bash, and README shows the size of this machine's: then all its numbers are those printed here."""
    bash = Path("/bin/bash")
    return str(bash) in text and f" {bash.stat().st_size:,} bytes" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", [pytest.param(page, marks=MARKS.get(page, ())) for page in PAGES])
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
            if page in CONSOLE_ONLY:
                continue
            printed = run(sys.executable, "-W", "error", "-c", example["python"])
            if example["text"]:
                assert_shown(example["python"], printed, example["text"].splitlines(), exactly=exactly)
        else:
            for command in re.split(r"^\$ ", example["console"], flags=re.MULTILINE)[1:]:
                line, *shown = command.splitlines()
                assert_shown(line, run("sh", "-c", line), shown, exactly=exactly)


def test_the_picture_of_a_terminal_shows_readmes_first_example() -> None:
    """Lines may be broken at spaces, never within a number or a name."""
    [shown] = re.findall(r"^```console\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = re.findall(r"<text.*?</text>", (ROOT / "docs/first-minute.svg").read_text())
    assert " ".join(unescape(re.sub(r"<.*?>", "", line)) for line in lines).split() == shown.split()
