"""Commands -> a recording of a terminal in SVG: lines appear when they were printed, and stay; their text can be selected.

python -m tools.terminal_picture docs/first-minute.svg

It runs COMMANDS in a directory with a large file, with the `sframegen` on PATH. `sframegen profile` needs root.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

COMMANDS = (
    "sframegen profile -o p.html -- gzip -k bash.tar",
    "cp /bin/bash bash && sframegen add-section bash",
    "./bash -c 'echo still runs'",
    "sframegen lookup bash execute_command execute_command+8",
    "sframegen remove bash && cmp bash /bin/bash",
)
COPIES = 4  # of bash, for gzip to work on
COLUMNS = 108
TYPED = 0.7  # seconds from one command's end to the next one
FONT, LETTER, LINE, MARGIN = 12.5, 7.53, 19, 14  # pixels
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[^\x20-\x7e\u00a0-\uffff]")
PROGRESS = re.compile("; Ctrl-C ends$")  # a line that the next one replaces
STYLE = f"""text {{ font: {FONT}px ui-monospace, Menlo, Consolas, monospace; fill: #18181b; white-space: pre }}
.page {{ fill: #f7f7f9; stroke: #d4d4da }}
.typed {{ font-weight: bold }}
.prompt {{ fill: #2f7d32 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #f4f4f8 }}
.page {{ fill: #16161a; stroke: #3a3a42 }}
.prompt {{ fill: #8fd694 }}
}}
@media (prefers-reduced-motion: no-preference) {{
text {{ opacity: 0; animation: shown 0.01s forwards }}
}}
@keyframes shown {{ to {{ opacity: 1 }} }}
"""


class Printed(NamedTuple):
    seconds: float  # from the start
    text: str
    typed: bool  # a command


def recorded(commands: Iterable[str], directory: Path) -> Iterator[Printed]:
    """Run commands for a shell in a directory, each with a terminal. Raises CalledProcessError if one fails."""
    began, typing = time.monotonic(), 0.0
    for command in commands:
        typing += TYPED
        yield Printed(time.monotonic() - began + typing, command, typed=True)
        above, below = pty.openpty()
        environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "dumb"}
        process = subprocess.Popen(["sh", "-c", command], cwd=directory, env=environment, stdout=below, stderr=below)
        os.close(below)
        with open(above, encoding="utf-8", errors="replace") as terminal, suppress(OSError):  # noqa: PTH123 - a descriptor; EIO ends it
            for line in terminal:
                text = CONTROL.sub("", line)
                if text and not PROGRESS.search(text):
                    yield Printed(time.monotonic() - began + typing, text, typed=False)
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)


def rows_of(printed: Sequence[Printed]) -> Iterator[Printed]:
    """Lines as a terminal of that width breaks them."""
    for seconds, text, typed in printed:
        width = COLUMNS - 2 * typed
        for start in range(0, max(len(text), 1), width):
            yield Printed(seconds, text[start : start + width], typed and start == 0)


def picture(printed: Sequence[Printed]) -> Iterator[str]:
    """Return the lines of the picture."""
    rows = list(rows_of(printed))
    width, height = round(COLUMNS * LETTER) + 2 * MARGIN, len(rows) * LINE + 2 * MARGIN
    size = f'viewBox="0 0 {width} {height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} xml:space="preserve" role="img" aria-labelledby="title">'
    yield f'<title id="title">A terminal: the first minute with sframegen</title>\n<style>\n{STYLE}</style>'
    yield f'<rect class="page" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>'
    for number, (seconds, text, typed) in enumerate(rows):
        prompt = '<tspan class="prompt">$ </tspan>' if typed else ""
        kind = ' class="typed"' if typed else ""
        place = f'x="{MARGIN}" y="{MARGIN + LINE * number + 14}"'
        yield f'<text{kind} {place} style="animation-delay: {seconds:.1f}s">{prompt}{escape(text, quote=False)}</text>'
    yield "</svg>"


def main(output: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "bash.tar").write_bytes(Path("/bin/bash").read_bytes() * COPIES)
        printed = list(recorded(COMMANDS, Path(directory)))
    Path(output).write_text("".join(f"{line}\n" for line in picture(printed)))


if __name__ == "__main__":
    main(*sys.argv[1:])
