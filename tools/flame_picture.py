"""Folded stacks -> a flame graph that does not move, in SVG, for light and for dark pages: docs/flame-graph.svg.

sframegen profile -F 999 -o query.folded -- ./query shop.db orders.sql
python -m tools.flame_picture query.folded docs/flame-graph.svg
"""

from __future__ import annotations

import sys
from collections import Counter
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WIDTH, ROW, TOP, MARGIN = 900, 19, 30, 8  # pixels
LETTER = 6.7  # pixels: as wide as a letter of STYLE's fonts is
LEAST = 2.0  # pixels: narrower frames are not drawn
SHORTEST = 4  # letters: shorter pieces of a name say nothing
CLASSES = ("one", "two", "three", "four", "five", "six")
STYLE = """text { font: 11px ui-monospace, monospace; fill: #18181b }
.head { font: bold 14px system-ui, sans-serif }
.page { fill: #fff; stroke: #d4d4da }
.none { fill: #e2e2e7 }
.one { fill: #9fc5f0 }
.two { fill: #f3c98b }
.three { fill: #a9d8a4 }
.four { fill: #e0b3e6 }
.five { fill: #f0aaa4 }
.six { fill: #9fd8d6 }
@media (prefers-color-scheme: dark) {
text { fill: #f4f4f8 }
.page { fill: #16161a; stroke: #3a3a42 }
.none { fill: #3f3f47 }
.one { fill: #24588f }
.two { fill: #80571a }
.three { fill: #2f6a35 }
.four { fill: #6d3f77 }
.five { fill: #853b35 }
.six { fill: #22646a }
}
"""


class Box(NamedTuple):
    """A frame and its place. `begin`: samples to the left of it."""

    depth: int
    begin: int
    samples: int
    label: str


def preorder(lines: Iterable[str]) -> Iterator[tuple[int, str, int]]:
    """Return (depth, label, samples), children in alphabetical order, of lines such as `program;main;work 12`."""
    counts: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        stack, _, samples = line.rpartition(" ")
        path = ("all", *stack.split(";"))
        for end in range(1, len(path) + 1):
            counts[path[:end]] += int(samples)
    for path in sorted(counts):
        yield len(path) - 1, path[-1], counts[path]


def boxes(frames: Iterable[tuple[int, str, int]]) -> Iterator[Box]:
    """Place frames that come in preorder: each begins where its caller does, or where the one before it ended."""
    next_child = [0]  # for each depth
    for depth, label, samples in frames:
        begin = next_child[depth]
        next_child[depth:] = begin + samples, begin
        yield Box(depth, begin, samples, label)


def picture(lines: Iterable[str]) -> Iterator[str]:
    """Return the lines of the picture of a profile."""
    placed = list(boxes(preorder(lines)))
    total = placed[0].samples if placed else 0
    pixel = (WIDTH - 2 * MARGIN) / max(total, 1)
    found = [box for box in placed if box.samples * pixel >= LEAST]
    height = TOP + ROW * (1 + max((box.depth for box in found), default=0)) + MARGIN
    title = f"{total:,} samples"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">'
    yield f'<title id="title">Flame graph, {title}</title>\n<style>\n{STYLE}</style>'
    yield f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>'
    yield f'<text class="head" x="{MARGIN}" y="20">{title}</text>'
    for box in found:
        left, top = MARGIN + box.begin * pixel, height - MARGIN - ROW * (box.depth + 1)
        colour = CLASSES[crc32(box.label.encode()) % len(CLASSES)] if box.depth > 1 else "none"
        yield from _box(box, left, top, box.samples * pixel, colour)
    yield "</svg>"


def _box(box: Box, left: float, top: int, width: float, colour: str) -> Iterator[str]:
    label = box.label
    yield f'<rect class="{colour}" x="{left:.1f}" y="{top}" width="{max(width - 0.6, 0.6):.1f}" height="{ROW - 1}"/>'
    letters = int((width - 6) / LETTER)
    if letters >= min(SHORTEST, len(label)):
        shown = label if len(label) <= letters else f"{label[: letters - 1]}…"
        yield f'<text x="{left + 3:.1f}" y="{top + 13}">{escape(shown)}</text>'


def main(profile: str, output: str) -> None:
    Path(output).write_text("".join(f"{line}\n" for line in picture(Path(profile).read_text().splitlines())))


if __name__ == "__main__":
    main(*sys.argv[1:])
