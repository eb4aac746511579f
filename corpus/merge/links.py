"""How the objects are linked, by machine and linker."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.cross import MACHINES

SHAPES = ("-pie", "-no-pie", "-shared", "-static")
GC = "-Wl,--gc-sections"


class Link(NamedTuple):
    """`flags` of gcc. `archive`: most objects come from an archive, by way of its index."""

    flags: tuple[str, ...]
    archive: bool = False

    @property
    def name(self) -> str:
        return " ".join([*(flag.removeprefix("-Wl,").replace(",", " ") for flag in self.flags), *["of an archive"] * self.archive])

    @property
    def file(self) -> str:
        return "_".join(self.name.replace("-", "").replace("=", "").split()) + (".so" if "-shared" in self.flags else "")


def _with(*flags: str, archive: bool = False) -> Link:
    return Link(flags, archive)


EVERYWHERE = [_with(shape, *gc) for shape in SHAPES for gc in ((), (GC,))]
AMD64 = [
    *EVERYWHERE,
    _with("-pie", "-Wl,-z,now"),
    _with("-pie", "-Wl,-z,lazy"),
    _with("-pie", "-Wl,-z,ibtplt"),
    _with("-pie", "-Wl,-z,ibtplt", "-Wl,-z,now", GC),
    _with("-shared", "-Wl,-z,ibtplt"),
    _with("-shared", "-Wl,-z,now"),
    _with("-no-pie", "-Wl,-z,ibtplt"),
    _with("-no-pie", "-Wl,--sort-section=name", GC),
    _with("-pie", "-Wl,-z,noseparate-code"),
    _with("-pie", GC, archive=True),
    _with("-static", archive=True),
]
OTHERS = [*EVERYWHERE, _with("-pie", "-Wl,-z,now"), _with("-pie", GC, archive=True)]


def gnu(machine: str) -> list[Link]:
    """Those by GNU ld."""
    if machine == "x86-64":
        return AMD64
    [static] = [one.static.split() for one in MACHINES if one.name == machine]  # with room for program headers
    return [link._replace(flags=(*static, *link.flags[1:])) if "-static" in link.flags else link for link in OTHERS]


LTO = [
    _with("-pie", "-flto-partition=balanced", "--param=lto-partitions=8"),
    _with("-pie", "-flto-partition=1to1", GC),
    _with("-shared", "-flto-partition=balanced", "--param=lto-partitions=40"),
]

# Not -static: lld and mold leave no room for program headers there.
LLD = [
    _with("-pie"),
    _with("-no-pie"),
    _with("-shared"),
    _with("-pie", GC),
    _with("-pie", "-Wl,--icf=all"),
    _with("-pie", "-Wl,--icf=all", GC),
    _with("-no-pie", "-Wl,--icf=safe", GC, archive=True),
    _with("-shared", "-Wl,--icf=all", GC),
]
MOLD = [_with("-pie"), _with("-no-pie"), _with("-shared"), _with("-pie", GC), _with("-pie", "-Wl,--icf=all", GC)]
MOLD_3 = {
    "x86-64": [*MOLD, _with("-shared", GC), _with("-pie", "-Wl,-z,now"), _with("-pie", GC, archive=True)],
    "arm64": [_with("-pie"), _with("-shared"), _with("-pie", GC, archive=True)],
    "s390x": [_with("-pie"), _with("-shared"), _with("-pie", GC, archive=True)],
}
