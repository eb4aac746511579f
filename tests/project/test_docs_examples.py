"""What pages show is what happens, except numbers on a machine that is not the one shown. Each page has a directory of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.kernel_events import needs_bpf

pytestmark = pytest.mark.once

# Commands and what they print; Python, and in the block after it what it prints; files.
EXAMPLE = re.compile(
    r"^```console\n(?P<console>.*?)^```$"
    r"|^```python\n(?P<python>.*?)^```$(?:\n\n^```text\n(?P<text>.*?)^```$)?"
    r"|^Save this as `(?P<name>[\w.]+)`[^\n]*\n\n^```\w+\n(?P<file>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
EH_FRAME = ".eh_frame + .eh_frame_hdr"
PAGES = (  # that can be typed from top to bottom
    "README.md",
    pytest.param("docs/fleet.md", marks=pytest.mark.full),
    "docs/gates.md",
    "docs/library.md",
    pytest.param("docs/profile.md", marks=needs_bpf),
    "docs/tutorial.md",
)


CONSOLE_ONLY = ("docs/backtrace.md", "docs/detached.md", "docs/index.md", "docs/registry.md")  # whose other examples are pieces


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


@pytest.mark.parametrize("page", [*PAGES, *CONSOLE_ONLY])
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
            if page in CONSOLE_ONLY or ("to_arrow" in example["python"] and find_spec("pyarrow") is None):
                continue
            printed = run(sys.executable, "-W", "error", "-c", example["python"])
            if example["text"]:
                assert_shown(example["python"], printed, example["text"].splitlines(), exactly=exactly)
        else:
            for command in re.split(r"^\$ ", example["console"], flags=re.MULTILINE)[1:]:
                line, *shown = command.splitlines()
                assert_shown(line, run("sh", "-c", line), shown, exactly=exactly)


def test_the_tutorial_shows_one_build() -> None:
    """Its stack is of the program whose rules it shows: the same addresses, moved by a multiple of the page size."""
    text = (ROOT / "docs/tutorial.md").read_text()
    entries = {name: int(address, 16) for address, name in re.findall(r"^0x(\w+) <(\w+)>:", text, re.MULTILINE)}
    for address, name, offset in re.findall(r"^0x(\w+) <(\w+)\+0x(\w+)>:", text, re.MULTILINE):
        assert int(address, 16) - int(offset, 16) == entries.setdefault(name, int(address, 16) - int(offset, 16))
    frames = re.findall(r"^#\d+ +0x(\w+) (\w+) \+ 0x(\w+) - \S+/work$", text, re.MULTILINE)
    loaded_at = {int(pc, 16) - int(offset, 16) - entries[name] for pc, name, offset in frames if name in entries}
    assert len(loaded_at) == 1
    assert loaded_at.pop() % 4096 == 0
    assert {name for _pc, name, _offset in frames} >= {"inner", "middle", "main"}


def promise(name: str) -> str:
    """One bullet of what README promises."""
    [said] = re.findall(rf"^- \*\*{name}\.\*\* (.*?)(?=\n- \*\*|\n\n)", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    return str(said)


def test_times_in_readme_were_measured() -> None:
    figures = json.loads((ROOT / "docs/reports/performance.json").read_text())["figures"]
    seconds = {(one["what"], one["file"]): one["value"] for one in figures if one["part"] == "time"}

    def share(command: str, file: str) -> str:
        return f"{seconds[command, file] / seconds['readelf -wF', file]:.2f}"

    said = promise("Fast for large files")
    shares = [share("add-section", "libLLVM"), share("add-section --no-verify", "libLLVM"), share("add-section", "bash")]
    assert re.findall(r"\b\d+\.\d\d\b", said) == shares
    assert re.findall(r"\d+ ms", said) == [f"{1000 * seconds['add-section', 'bash']:.0f} ms"]
    page = (ROOT / "docs/performance.md").read_text()
    assert [number for number in shares if f"|  {number} |" not in page] == []
    assert re.findall(r"\(\S+ MB\)", said) == [re.search(rf" on {file} (\(\S+ MB\))", page)[1] for file in ("libLLVM", "bash")]  # type: ignore[index]


def test_the_size_in_readme_was_measured() -> None:
    report = (ROOT / "docs/reports/survey.md").read_text()
    [measured] = re.findall(r"Sections take [\d,]+ bytes, (\d\.\d+) of \.eh_frame \+ \.eh_frame_hdr", report)
    [packages, files] = re.findall(r"^(\d+) packages, .* ([\d,]+) of these get a section", report, re.MULTILINE)[0]
    assert re.findall(r"[\d,.]*\d", promise("Small").partition("(")[0]) == [files, packages, f"{float(measured):.2f}"]


def test_the_pages_that_readme_links_have_its_figures() -> None:
    """Large numbers and percentages, each on the page that is linked after them."""
    promises = (ROOT / "README.md").read_text().partition("## What it promises")[2].partition("\n## ")[0]
    missing = [
        (number, page)
        for text, page in re.findall(r"(.*?)\]\((docs/[\w/-]+\.md)", promises, re.DOTALL)
        for number in re.findall(r"\d{1,3}(?:,\d{3})+|\d+\.\d+(?= %)", text)
        if number not in (ROOT / page).read_text()
    ]
    assert missing == []


def test_how_much_longer_interpreted_code_takes_was_measured() -> None:
    rows = re.findall(r"^\| (\w+) +\| +([\d.]+) \|.* ([\d.]+) \|$", (ROOT / "docs/compiled.md").read_text(), re.MULTILINE)
    small = [(float(megabytes), float(times)) for file, megabytes, times in rows if file != "libLLVM"]
    large = [float(times) for file, _megabytes, times in rows if file == "libLLVM"]
    least, most, size, of_llvm = re.findall(
        r"it takes (\d+) to (\d+) times as long for files of up to (\d+) MB, and (\d+) times for libLLVM",
        " ".join((ROOT / "README.md").read_text().split()),
    )[0]
    times = [one for _size, one in small]
    assert [int(least), int(most), int(of_llvm)] == [round(min(times)), round(max(times)), round(max(large))]
    assert int(size) == round(max(megabytes for megabytes, _times in small))
