"""The rows that a person reads: what each job takes, beside a program that everybody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from benchmarks import lookup, merging, size, stacks, start_up
from benchmarks.figures import padded
from benchmarks.whole_process import READELF
from corpus.samples import ALL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.figures import Figure

OBJECTS = "20,000 objects"


class Compared(NamedTuple):
    """Two figures of one part: ours, and that of the peer, which may stand in another column."""

    job: str
    part: str
    ours: str
    peer: str
    column: str
    peers_column: str = ""

    def row(self, known: dict[tuple[str, str, str], Figure]) -> list[str]:
        ours, peer = known[self.part, self.ours, self.column], known[self.part, self.peer, self.peers_column or self.column]
        name = self.peers_column or self.peer
        return [self.job, _text(ours), f"{name}: {_text(peer)}", f"{ours.value / peer.value:.2f}"]


ROWS = (
    Compared("`add-section --no-verify` on libLLVM (151 MB)", "time", "add-section --no-verify", READELF, "libLLVM"),
    Compared("`add-section`, verified, on libLLVM", "time", "add-section", READELF, "libLLVM"),
    Compared("`add-section --no-verify` on libxul (185 MB)", "time", "add-section --no-verify", READELF, "libxul"),
    Compared("`add-section`, verified, on bash (1.4 MB)", "time", "add-section", READELF, "bash"),
    Compared("`check` of libLLVM", "time", "check", READELF, "libLLVM"),
    Compared("`--version`: the start of any command", start_up.PART, "--version", start_up.PYTHON, "CPU time"),
    Compared("`merge --map`, 20,000 objects", merging.TIME, "merge --map", merging.GNU_R, OBJECTS),
    Compared("`stack` of 64 threads", stacks.WHOLE, "time", "time", stacks.OURS, "eu-stack"),
    Compared("section of libxul", "size", "--optimize fast", size.EH_FRAME, "libxul"),
    Compared("section of C and C++ libraries (GCC 16)", "size", "--optimize fast", size.GNU, ALL),
    Compared("look-up of a PC in it", lookup.PART, "libsframe on fast", f"libsframe on {lookup.GNU}", ALL),
)


def summary(figures: Sequence[Figure]) -> str:
    """The table of these rows. Raises KeyError if a part was not measured."""
    known = {(one.part, one.what, one.file): one for one in figures}
    return padded([["what", "sframegen", "compared with", "share"], *(row.row(known) for row in ROWS)])


def _text(figure: Figure) -> str:
    match figure.unit:
        case "s":
            return f"{1000 * figure.value:,.0f} ms"
        case "bytes":
            return f"{figure.value / 1000:,.0f} KB"
        case unit:
            return f"{figure.value:,.0f} {unit}"
