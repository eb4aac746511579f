"""What root does in trees of the attacker's: races for each command that writes, or that reads what others have."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from sframegen import FormatError, add_section, merge, remove
from sframegen.cli.commands import cli
from sframegen.format.model import FunctionTable, Kind, Rule, Where
from sframegen.profile.tables.decoded_table import make_decoded_table
from sframegen.profile.tables.table_cache import TableCache
from tests.attacks import NOBODY, Race, Scene

# -- what is exchanged


def link_to(scene: Scene, name: str, target: Path) -> Path:
    link = scene.tree / name
    link.symlink_to(target)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    return link


def one_file(scene: Scene, name: str = "x") -> tuple[Path, Path]:
    """A program, and a link to the victim."""
    return scene.give(name), link_to(scene, "y", scene.victim)


def a_secret(scene: Scene) -> tuple[Path, Path]:
    """A set-user-ID program of the attacker's, and a link to what only root may read."""
    path = scene.give("d/x")
    path.chmod(0o6755)
    return path, link_to(scene, "y", scene.secret)


def two_names(scene: Scene) -> tuple[Path, Path]:
    """A program with two names; a link to the victim comes in the place of the second."""
    one, link = one_file(scene)
    second = scene.tree / "second"
    second.hardlink_to(one)
    return second, link


def a_fifo(scene: Scene) -> tuple[Path, Path]:
    """A program, and a FIFO: whoever opens that by its name waits for ever."""
    fifo = scene.tree / "fifo"
    os.mkfifo(fifo)
    return scene.give("x"), fifo


def a_section(scene: Scene) -> tuple[Path, Path]:
    """The same, and the program has a section."""
    names = a_fifo(scene)
    add_section(names[0], verify=False)
    return names


def a_directory(scene: Scene) -> tuple[Path, Path]:
    """A directory with a program of the victim's name, and a link to the victim's directory."""
    return scene.give(f"d/{scene.victim.name}").parent, link_to(scene, "z", scene.victim.parent)


def below_output(inner: str) -> Callable[[Scene], tuple[Path, Path]]:
    """A directory of the attacker's in root's output, and a link to the victim's directory; a package to read."""

    def prepare(scene: Scene) -> tuple[Path, Path]:
        scene.give("d/x")
        directory, link = scene.output / inner, scene.output / f"{inner}-link"
        directory.mkdir(parents=True)
        link.symlink_to(scene.victim.parent)
        for path in (directory, link, directory.parent):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        return directory, link

    return prepare


# -- what root does


def command(*words: str) -> Callable[[Scene, bool], object]:
    """The command line with these words, in which TREE, OUT and SAFE stand for directories."""

    def change(scene: Scene, _: bool) -> None:
        places: dict[str, object] = {"TREE": scene.tree, "OUT": scene.output, "SAFE": scene.victim.parent, "PID": os.getpid()}
        arguments = [str(places.get(word, word)) if "/" not in word else _path(word, places) for word in words]
        if cli.main(arguments, standalone_mode=False):
            raise FormatError("a file was refused")

    return change


def _path(word: str, places: Mapping[str, object]) -> str:
    first, _, rest = word.partition("/")
    return f"{places.get(first, first)}/{rest}"


def in_place(*names: str) -> Callable[[Scene, bool], object]:
    """Add and remove a section by turns, as a user of the library or of the command line does who names these."""

    def change(scene: Scene, is_odd: bool) -> None:
        path, *others = [scene.tree / name for name in names]
        if is_odd:
            add_section(path, hard_links=others, verify=False)
        else:
            remove(path, hard_links=others, verify=False)

    return change


def whole_tree(scene: Scene, is_odd: bool) -> None:
    command("add-tree", "--strict", "-j1", "--sframe-version", "23"[is_odd], "TREE")(scene, is_odd)


def tree_and_back(scene: Scene, is_odd: bool) -> None:
    command(*(("remove-tree",) if is_odd else ("add-tree", "--strict")), "-j1", "TREE")(scene, is_odd)


def converted(scene: Scene, is_odd: bool) -> None:
    add_section(scene.tree / "x", replace=True, verify=False, version=3)
    command("convert", "--no-verify", "--sframe-version", "2", "TREE/x")(scene, is_odd)


def merged(scene: Scene, _: bool) -> None:
    """An object of root's, into a directory of the attacker's."""
    path = scene.output / "object.o"
    if not path.exists():
        subprocess.run(["gcc", "-c", "-x", "c", "-", "-o", path], input=b"int f(void) { return 1; }", check=True)
        add_section(path, verify=False)
    merge([path], scene.tree / "d/program", verify=False)


def linked(scene: Scene, _: bool) -> None:
    """A linker that renames its output into place."""
    linker = scene.output / "linker"
    if not linker.exists():
        linker.write_text(f'#!/bin/sh\ncp {scene.program} {scene.output}/new && mv -fT {scene.output}/new "$2"\n')
        linker.chmod(0o755)
    subprocess.run(
        [sys.executable, "-P", "-m", "sframegen", "link", "--strict", "--", linker, "-o", scene.tree / "x"],
        check=False,
        capture_output=True,
    )
    (scene.output / "new").unlink(missing_ok=True)


def cached(scene: Scene, _: bool) -> None:
    table = FunctionTable(kinds=[Kind()], rules=[Rule(Where(7, 8), Where(None, -8, deref=True))])
    table.append(0x1000, 0x321, 0, [(0, 0)])
    cache = TableCache(scene.tree / "d/tables", 1)
    try:
        if cache.note:
            raise FormatError(cache.note)
        status = Path(sys.executable).stat()
        cache.store(status, make_decoded_table(table), 62)
        cache.load(status)
        cache.trim()
    finally:
        cache.close()


@cache
def has_fleet() -> bool:
    """True if the packages of the extra are here."""
    from importlib.util import find_spec  # noqa: PLC0415 - only for these races

    return all(find_spec(name) for name in ("fsspec", "pyarrow"))


def fleet(mode: str, output: str = "OUT") -> Callable[[Scene, bool], object]:
    """A run in this process: list the tree, work on each package, make the tables."""

    def change(scene: Scene, _: bool) -> None:
        from sframegen.fleet.collecting import write_tables  # noqa: PLC0415 - here and below: they need the extra
        from sframegen.fleet.output_directory import OutputDirectory, write_key  # noqa: PLC0415
        from sframegen.fleet.package_work import work_on  # noqa: PLC0415
        from sframegen.fleet.result_rows import RowOutcome  # noqa: PLC0415
        from sframegen.fleet.run_options import Mode, RunOptions  # noqa: PLC0415
        from sframegen.fleet.sources.listing import list_source  # noqa: PLC0415

        options = RunOptions(Mode(mode))
        where = _path(f"{output}/run", {"TREE": scene.tree, "OUT": scene.output})
        with OutputDirectory.opened(where, make=True) as directory, directory.locked(), directory.new_keys() as keys:
            for number, item in enumerate(list_source(str(scene.tree))):
                if item.refused:
                    continue
                try:
                    write_key(keys, number, work_on(item, options, directory).key)
                except OSError as error:
                    key = options.make_key_without_content(item)
                    write_key(keys, number, directory.write_no_content(key, item, RowOutcome.FAILED, str(error)).key)
            write_tables(directory, lambda _: None)
            directory.remove_result("00" * 32)

    return change


def with_package(prepare: Callable[[Scene], tuple[Path, Path]]) -> Callable[[Scene], tuple[Path, Path]]:
    """The same scene, with packages in place of the attacker's program and of the secret."""

    def prepared(scene: Scene) -> tuple[Path, Path]:
        given = scene._replace(program=scene.program.with_name("package.tar"))
        for program, package in ((scene.program, given.program), (scene.secret, scene.secret)):
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(program, "usr/bin/it")
            package.write_bytes(packed.getvalue())
        return prepare(given)

    return prepared


ADD = ("add-section", "--no-verify", "--replace", "-q")
RACES = {
    "content planted: add-tree, remove-tree": Race(one_file, tree_and_back),
    "content planted: convert": Race(one_file, converted),
    "ownership lost: add-section in place": Race(one_file, in_place("x")),
    "hard links: add-section of two names": Race(two_names, in_place("x", "second")),
    "a FIFO: add-section in place": Race(a_fifo, in_place("x")),
    "a directory: add-tree": Race(a_directory, whole_tree),
    "a directory: add-section in place": Race(a_directory, in_place("d/program")),
    "a secret: add-section -o": Race(a_secret, command(*ADD, "TREE/d/x", "-o", "OUT/copy"), copies=True),
    "a directory: add-section -o": Race(a_directory, command(*ADD, "OUT/../program", "-o", "TREE/d/program"), copies=True),
    "a directory: add-section --detached": Race(
        a_directory, command("add-section", "-q", "--detached", "TREE/d", "OUT/../program"), copies=True
    ),
    "a directory: merge -o": Race(a_directory, merged, copies=True, cost=10),
    "a file: link": Race(one_file, linked, copies=True, cost=50),
    "a directory: link --install": Race(a_directory, command("link", "--install", "TREE/d", "--", "gcc"), copies=True),
    "a directory: profile's cache of tables": Race(a_directory, cached),
    "a directory: profile -o": Race(a_directory, command("profile", "-d", "0.01", "-o", "TREE/d/x.folded", "PID"), cost=100),
    "a FIFO: check": Race(a_section, command("check", "-q", "TREE/x")),
    "a FIFO: dump": Race(a_section, command("dump", "TREE/x")),
    "a FIFO: lookup": Race(a_section, command("lookup", "TREE/x", "0x1000"), is_refused=True),
}
FLEET_RACES = {
    "a secret: fleet run": Race(with_package(a_secret), fleet("rewrite"), copies=True, cost=4),
    "a directory: fleet run": Race(with_package(a_directory), fleet("rewrite"), copies=True, cost=4),
    "a FIFO: fleet run": Race(with_package(a_fifo), fleet("rewrite"), copies=True, cost=4),
    "a directory: fleet run, the output": Race(with_package(a_directory), fleet("rewrite", "TREE/d"), copies=True, cost=8),
    **{
        f"a directory: fleet run, {inner} in the output": Race(
            with_package(below_output(f"run/{inner}")), fleet(mode), copies=True, cost=4, is_refused=True
        )
        for inner, mode in (("packages", "rewrite"), ("results", "survey"), ("seen", "survey"))
    },
}
ALL = RACES | FLEET_RACES
