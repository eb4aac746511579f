"""Writes shims: shell scripts with the names of linkers, which run `sframegen link` with the real linker."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import sframegen
from linker.files.location import locate, make_directory
from linker.files.rename_into_place import write_new
from sframegen.base.errors import FormatError
from sframegen.elf.file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINKER_NAMES = ("ld", "ld.bfd", "ld.gold", "ld.lld", "ld.mold")
LAUNCHER = "sframegen-link"  # a prefix for commands that link, not a shim for one linker
SHIM_MARK = "# made by `sframegen link --install`"
# python -I finds the package whatever PYTHONPATH and HOME a build has. set -f keeps the shell from expanding patterns in options.
# If sframegen has been uninstalled, the shim runs the linker alone.
SHIM = f"""\
#!/bin/sh
{SHIM_MARK}
set -f
linker={{linker}}
options="{{options}} $SFRAMEGEN_LINK_OPTIONS"
if [ -x {{python}} ] && [ -e {{package}} ]; then
    exec {{python}} -I -c {{code}} link $options -- "$linker" "$@"
fi
case " $options " in
*" --strict "* | *" --fatal "*) echo "sframegen: sframegen has been uninstalled" >&2; exit 1 ;;
esac
echo "sframegen: warning: sframegen has been uninstalled; linked without the section" >&2
exec "$linker" "$@"
"""
PYTHON_CODE = "import sys; sys.path.append({root!r}); from sframegen.cli.start import main; main()"


def find_linker(name: str, besides: Path) -> str | None:
    """Return the absolute path of a linker, given by a path or a name on PATH, but not a shim or a file in `besides`; else None."""
    directories = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    for directory in directories:
        path = Path(directory, name).absolute()
        if path.is_file() and os.access(path, os.X_OK) and path.parent.resolve() != besides.resolve() and not is_shim(path):
            return str(path)
    return None


def is_shim(path: Path) -> bool:
    try:
        descriptor = open_regular(os.fspath(path), os.fspath(path))
    except FormatError:  # not a regular file, such as a FIFO, whose opening would wait for a writer
        return False
    with os.fdopen(descriptor, "rb") as file:
        return SHIM_MARK.encode() in file.read(200)


def install_shims(directory: Path, linker: str | None, link_name: str | None, options: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Write shims for the linkers on PATH and the launcher, or one for `linker`, `link_name` or ld; yield each with what it runs.

    Raises OSError.
    """
    commands = {name: name for name in LINKER_NAMES} if linker is None else {link_name or "ld": linker}  # by name of the shim
    linkers = {name: path for name, command in commands.items() if (path := find_linker(command, directory))}
    if not linkers:
        raise FileNotFoundError(2, "no such linker (shims do not count)", linker or "ld")
    make_directory(directory)
    shell_words = {name: shlex.quote(path) for name, path in linkers.items()}
    if linker is None:
        shell_words[LAUNCHER] = "$1; shift"  # the launcher's own first argument is the linker
    code = PYTHON_CODE.format(root=str(Path(sframegen.__file__).parents[1]))
    for name, word in shell_words.items():
        shim = directory / name
        if shim.exists() and not is_shim(shim):
            raise FileExistsError(17, "not replaced: not a shim of sframegen", str(shim))
        text = SHIM.format(
            linker=word,
            code=shlex.quote(code),
            python=shlex.quote(sys.executable),
            package=shlex.quote(sframegen.__file__),
            options=" ".join(options),
        )
        with locate(shim) as location:  # replaced as a whole, since a build may be running it
            write_new(location, text.encode(errors="surrogateescape"), 0o777)
        yield shim, linkers.get(name, "the command after it")
