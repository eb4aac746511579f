"""A profile in pprof's format -> a flame graph that does not move, in SVG, for light and for dark pages: docs/flame-graph.svg.

sframegen profile -F 999 -o query.pb.gz -- ./query shop.db orders.sql
python -m tools.flame_picture query.pb.gz docs/flame-graph.svg
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sframegen.profile.report.formats.flamegraph import preorder
from sframegen.profile.report.grouping import group_stacks
from sframegen.profile.stored.read_pprof import PprofProfiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sframegen.profile.report.formats.flamegraph import DrawnFrame
    from sframegen.profile.report.named import Named

WIDTH, ROW, TOP, MARGIN = 900, 19, 30, 8  # pixels
LETTER = 6.7  # pixels: as wide as a letter of STYLE's fonts is
LEAST = 2.0  # pixels: narrower frames are not drawn
SHORTEST = 4  # letters: shorter pieces of a name say nothing
CLASSES = ("one", "two", "three", "four", "five", "six")  # of objects, those with the most frames first
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
    frame: DrawnFrame


def boxes(frames: Iterable[tuple[int, DrawnFrame, int]]) -> Iterator[Box]:
    """Place frames that come in preorder: each begins where its caller does, or where the one before it ended."""
    next_child = [0]  # for each depth
    for depth, frame, samples in frames:
        begin = next_child[depth]
        next_child[depth:] = begin + samples, begin
        yield Box(depth, begin, samples, frame)


def picture(named: Named) -> Iterator[str]:
    """Return the lines of the picture of a profile."""
    pixel = (WIDTH - 2 * MARGIN) / max(named.samples, 1)
    found = list(boxes(preorder(named, max(1, int(LEAST / pixel)))))
    height = TOP + ROW * (1 + max((box.depth for box in found), default=0)) + MARGIN
    title = f"{named.event}: {named.unit.shown(named.samples)}"
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title">'
    yield f'<title id="title">Flame graph, {escape(title)}</title>\n<style>\n{STYLE}</style>'
    yield f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>'
    yield f'<text class="head" x="{MARGIN}" y="20">{escape(title)}</text>'
    classes = _classes(found)
    yield from _legend(classes)
    for box in found:
        left, top = MARGIN + box.begin * pixel, height - MARGIN - ROW * (box.depth + 1)
        yield from _box(box, left, top, box.samples * pixel, classes.get(box.frame.object, "none"))
    yield "</svg>"


def _classes(found: Sequence[Box]) -> dict[str, str]:
    """Return the colour of each object that has one."""
    objects = [box.frame.object for box in found if box.frame.object]
    return dict(zip(sorted(set(objects), key=lambda name: (-objects.count(name), name)), CLASSES, strict=False))


def _legend(classes: dict[str, str]) -> Iterator[str]:
    left = WIDTH / 2
    for name, colour in classes.items():
        yield f'<rect class="{colour}" x="{left:.1f}" y="10" width="11" height="11"/>'
        yield f'<text x="{left + 15:.1f}" y="20">{escape(name)}</text>'
        left += 15 + LETTER * (len(name) + 2)


def _box(box: Box, left: float, top: int, width: float, colour: str) -> Iterator[str]:
    label = box.frame.label
    yield f'<rect class="{colour}" x="{left:.1f}" y="{top}" width="{max(width - 0.6, 0.6):.1f}" height="{ROW - 1}"/>'
    letters = int((width - 6) / LETTER)
    if letters >= min(SHORTEST, len(label)):
        shown = label if len(label) <= letters else f"{label[: letters - 1]}…"
        yield f'<text x="{left + 3:.1f}" y="{top + 13}">{escape(shown)}</text>'


def main(profile: str, output: str) -> None:
    profiles = PprofProfiles()
    profiles.add(Path(profile).read_bytes())
    named = group_stacks(profiles.named, "comm")
    Path(output).write_text("".join(f"{line}\n" for line in picture(named)))


if __name__ == "__main__":
    main(*sys.argv[1:])
