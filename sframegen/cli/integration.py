from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click

from sframegen.cli.shared.command import Command, Example

DIRECTORY = Path(__file__).parents[1] / "integration"


class InstalledFile(NamedTuple):
    path: str  # in DIRECTORY
    help: str


# By option: the file or directory whose path it prints.
INSTALLED_FILES = {
    "cmake-dir": InstalledFile(
        "cmake", "CMake's find_package(Sframegen) and (SframeBacktrace), as Sframegen_DIR, SframeBacktrace_DIR."
    ),
    "debhelper-dir": InstalledFile("debhelper", "debhelper's dh --with sframe: its lib for PERL5LIB, its bin for PATH."),
    "include-dir": InstalledFile("include", "A C header: sframegen_jit.h, for code made at run time."),
    "make-file": InstalledFile("make/sframe.mk", "The file that GNU makefiles include."),
    "pkg-config-dir": InstalledFile("pkgconfig", "pkg-config sframe-backtrace: this directory for PKG_CONFIG_PATH."),
    "rpm-dir": InstalledFile("rpm", "rpmbuild's --load macros.sframe, as _sframe_dir."),
}


def _print_paths(**flags: bool) -> None:
    """Print the paths whose flags are set; without any, print all paths with their help."""
    names = [name for name in INSTALLED_FILES if flags[name.replace("-", "_")]]
    for name in names:
        path = str(DIRECTORY / INSTALLED_FILES[name].path)
        click.echo(path.replace(" ", "\\ ") if name == "make-file" else path)  # in make, an unescaped space ends a name
    if not names:
        for name, installed in INSTALLED_FILES.items():
            click.echo(f"--{name:15}{DIRECTORY / installed.path}\n{'':17}{installed.help}")


command = Command(
    "integration",
    examples=[
        Example("Use CMake's find_package(Sframegen)", 'cmake -D "Sframegen_DIR=$(sframegen integration --cmake-dir)" .'),
        Example("Let pkg-config find libsframe-backtrace", "export PKG_CONFIG_PATH=$(sframegen integration --pkg-config-dir)"),
    ],
    callback=_print_paths,
    params=[click.Option([f"--{name}"], is_flag=True, help=installed.help) for name, installed in INSTALLED_FILES.items()],
    help="Print the paths of the files for build systems and packaging. Without options, print all of them, each with its use.",
)
