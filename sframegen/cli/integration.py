from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from sframegen.cli.shared.command import Command, Example

HERE = Path(__file__).parents[1] / "integration"


class InstalledFile(NamedTuple):
    path: str  # in HERE
    help: str


# By option: a row for each file or directory that a tool needs to know.
PLACES = {
    "cmake-dir": InstalledFile(
        "cmake", "CMake's find_package(Sframegen) and (SframeBacktrace), as Sframegen_DIR, SframeBacktrace_DIR."
    ),
    "debhelper-dir": InstalledFile("debhelper", "debhelper's dh --with sframe: its lib for PERL5LIB, its bin for PATH."),
    "include-dir": InstalledFile("include", "A C header: sframegen_jit.h, for code made at run time."),
    "make-file": InstalledFile("make/sframe.mk", "The file that GNU makefiles include."),
    "pkg-config-dir": InstalledFile("pkgconfig", "pkg-config sframe-backtrace: this directory for PKG_CONFIG_PATH."),
    "rpm-dir": InstalledFile("rpm", "rpmbuild's --load macros.sframe, as _sframe_dir."),
}


def _print(**asked: bool) -> None:
    names = [name for name in PLACES if asked[name.replace("-", "_")]]
    for name in names:
        path = str(HERE / PLACES[name].path)
        click.echo(path.replace(" ", "\\ ") if name == "make-file" else path)  # make takes a space for the end of a name
    if not names:
        for name, place in PLACES.items():
            click.echo(f"--{name:15}{HERE / place.path}\n{'':17}{place.help}")


command = Command(
    "integration",
    examples=[
        Example("Use CMake's find_package(Sframegen)", 'cmake -D "Sframegen_DIR=$(sframegen integration --cmake-dir)" .'),
        Example("Let pkg-config find libsframe-backtrace", "export PKG_CONFIG_PATH=$(sframegen integration --pkg-config-dir)"),
    ],
    callback=_print,
    params=[click.Option([f"--{name}"], is_flag=True, help=place.help) for name, place in PLACES.items()],
    help="Print the paths of the files for build systems and packaging. Without options, print all of them, each with its use.",
)
