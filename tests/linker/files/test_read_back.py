"""Which library reads a written file back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from linker.files import read_back
from linker.files.read_back import MAX_LIEF_BYTES, MIN_FILES_FOR_LIEF, READERS, Reader, choose_reader, import_for_many
from sframegen.elf.file import ElfFile
from sframegen.elf.records import EM
from tests.support.inputs.linker_inputs import small_file
from tests.support.loops import for_each

SHT_AARCH64_ATTRIBUTES = 0x70000003


@pytest.fixture(autouse=True)
def not_imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delitem(sys.modules, "lief", raising=False)
    read_back._try_import_lief.cache_clear()
    yield
    read_back._try_import_lief.cache_clear()


@pytest.mark.parametrize(("files", "reader"), [(MIN_FILES_FOR_LIEF - 1, "elftools"), (MIN_FILES_FOR_LIEF, "lief")])
def test_many_small_files_are_read_back_with_lief(files: int, reader: str) -> None:
    import_for_many(files)
    assert (choose_reader(MAX_LIEF_BYTES - 1), choose_reader(MAX_LIEF_BYTES)) == (reader, "elftools")


def test_without_lief_many_files_are_read_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lief", None)  # its import fails, as where the C++ library is missing
    import_for_many(MIN_FILES_FOR_LIEF)
    assert choose_reader(1) == "elftools"


@for_each("reader", READERS)
def test_types_that_only_one_machine_has(reader: Reader, tmp_path: Path) -> None:
    """LIEF before 1.0 says that such a section has none."""
    data = bytearray(small_file())
    last = len(ElfFile(memoryview(bytes(data))).sections) - 1
    table = int.from_bytes(data[40:48], "little")
    data[18:20] = EM.AARCH64.to_bytes(2, "little")
    data[table + 64 * last + 4 : table + 64 * last + 8] = SHT_AARCH64_ATTRIBUTES.to_bytes(4, "little")
    file = tmp_path / "file"
    file.write_bytes(data)
    said = READERS[reader](file)
    assert said
    assert said.sections[last].header.sh_type == SHT_AARCH64_ATTRIBUTES
