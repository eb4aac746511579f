"""Which files a container sees, and under which paths."""

from __future__ import annotations

import io
import tarfile

import pytest

from cfi.errors import FormatError
from sframegen.packages.images.root_tree import RootTree
from sframegen.packages.tar_entries import TarEntry
from tests.packages.images.image_inputs import directory, elf, entry, hard_link, layer, symlink


def seen(*layers: list[tuple[tarfile.TarInfo, bytes]]) -> dict[str, tuple[str, ...]]:
    """The files of these layers that a container sees: the name of each one's entry, and its paths."""
    tree = RootTree()
    for number, entries in enumerate(layers):
        with tarfile.open(fileobj=io.BytesIO(layer(*entries))) as archive:
            for at, info in enumerate(archive):
                tree.apply(TarEntry(info, b"", info.size, is_whole=True), number, at, is_elf=info.isreg() and info.size > 0)
    return {f"{one.layer}:{one.entry.info.name}": tuple(paths) for one, paths in tree.elf_files().items() if one.entry}


FILE = entry("bin/a", elf())


@pytest.mark.parametrize(
    ("layers", "files"),
    [
        ([[FILE], [entry("bin/.wh.a")]], {}),
        ([[FILE], [entry(".wh.bin")]], {}),
        ([[FILE], [entry("bin/.wh.a")], [FILE]], {"2:bin/a": ("bin/a",)}),
        ([[FILE], [entry("bin/.wh.a"), FILE]], {"1:bin/a": ("bin/a",)}),
        ([[FILE, entry("bin/b", elf())], [entry("bin/.wh..wh..opq"), entry("bin/c", elf())]], {"1:bin/c": ("bin/c",)}),
        ([[FILE], [entry("bin/c", elf()), entry("bin/.wh..wh..opq")]], {"1:bin/c": ("bin/c",)}),
        ([[FILE], [entry("bin/.wh..wh.aufs", elf())]], {"0:bin/a": ("bin/a",)}),
        ([[FILE], [symlink("bin", "sbin")]], {}),
        ([[FILE], [entry("bin/a")]], {}),
        ([[FILE], [directory("bin/a")]], {}),
        ([[FILE], [directory("bin")]], {"0:bin/a": ("bin/a",)}),
        ([[FILE, FILE]], {"0:bin/a": ("bin/a",)}),
        ([[FILE, hard_link("b", "bin/a")]], {"0:bin/a": ("b", "bin/a")}),
        ([[FILE], [hard_link("b", "/bin/a")]], {"0:bin/a": ("b", "bin/a")}),
        ([[FILE, hard_link("b", "bin/a")], [entry("bin/.wh.a")]], {"0:bin/a": ("b",)}),
        ([[FILE, hard_link("b", "bin/a")], [entry("bin/a", elf())]], {"0:bin/a": ("b",), "1:bin/a": ("bin/a",)}),
        # Links on the way to a name are followed within the image.
        ([[directory("usr/bin"), symlink("bin", "usr/bin")], [FILE]], {"1:bin/a": ("usr/bin/a",)}),
        ([[directory("usr/bin"), symlink("bin", "/usr/bin")], [FILE]], {"1:bin/a": ("usr/bin/a",)}),
        ([[symlink("bin", "../../../etc")], [FILE]], {"1:bin/a": ("etc/a",)}),
        ([[directory("usr/bin"), symlink("bin", "usr/bin"), entry("usr/bin/a", elf())], [entry("bin/.wh.a")]], {}),
        ([[entry("./x/../a", elf())]], None),
        ([[directory("usr/bin"), symlink("bin", "usr/bin")], [directory("bin"), FILE]], {"1:bin/a": ("bin/a",)}),
    ],
)
def test_layers(layers: list[list[tuple[tarfile.TarInfo, bytes]]], files: dict[str, tuple[str, ...]] | None) -> None:
    if files is None:
        with pytest.raises(FormatError, match="leads out"):
            seen(*layers)
    else:
        assert seen(*layers) == files


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([[FILE, entry("bin/.wh.a")]], "tools disagree"),
        ([[FILE, entry(".wh.bin")]], "tools disagree"),
        ([[FILE], [entry("bin/.wh...")]], "removes no name"),
        ([[FILE], [entry("bin/.wh.")]], "removes no name"),
        ([[FILE], [entry("bin/a/b", elf())]], "is not a directory"),
        ([[symlink("bin", "bin")], [FILE]], "too many symbolic links"),
        ([[symlink("a", "b"), symlink("b", "a")], [entry("a/x")]], "too many symbolic links"),
        ([[hard_link("b", "bin/a")]], "not a file of the image"),
        ([[directory("bin"), hard_link("b", "bin")]], "not a file of the image"),
        ([[entry("a/" * 300 + "b")]], "too many directories"),
        ([[entry("a" * 5000)]], "too long"),
        ([[symlink("a", "b" * 5000)]], "too long"),
        ([[entry("./", type=tarfile.REGTYPE)]], "root directory"),
    ],
)
def test_layers_that_tools_could_not_unpack(layers: list[list[tuple[tarfile.TarInfo, bytes]]], message: str) -> None:
    with pytest.raises(FormatError, match=message) as raised:
        seen(*layers)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1200
