"""Wheels: RECORD holds, entries keep what they had, pip installs the result; damaged and signed ones are refused."""

from __future__ import annotations

import base64
import csv
import errno
import hashlib
import importlib.util
import io
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sframegen import Refusal, RefusedError
from sframegen.base.errors import FormatError
from sframegen.packages.package_api import add_to_package, remove_from_package
from sframegen.packages.zip_entries import naming_damage, write_zip
from tests.packages.package_makers import NAME, RECORD, row, wheel
from tests.support.peers import Compiler

FIELDS = ("filename", "date_time", "external_attr", "compress_type", "create_system", "comment")


@pytest.fixture
def files(compile_c: Compiler) -> dict[str, bytes]:
    library = compile_c("int f(int x) { return x + 1; }\n", "-shared", "-O1").read_bytes()
    return {"x/__init__.py": b"", "x/a.so": library, "x/data.bin": b"data" * 5000, "x/b.so": library, "x/é,\u2028.txt": b"name"}


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        return {info.filename: archive.read(info) for info in archive.infolist()}


def listed(path: Path) -> list[tuple[object, ...]]:
    with zipfile.ZipFile(path) as archive:
        return [tuple(getattr(info, field) for field in FIELDS) for info in archive.infolist()] + [(archive.comment,)]


def record_holds(path: Path) -> None:
    files = contents(path)
    rows = {name: (digest, size) for name, digest, size in csv.reader(io.StringIO(files[RECORD].decode(), newline=""))}
    assert rows.pop(RECORD) == ("", "")
    assert set(rows) == set(files) - {RECORD}
    for name, (digest, size) in rows.items():
        algorithm, _, value = digest.partition("=")
        expected = base64.urlsafe_b64encode(hashlib.new(algorithm, files[name]).digest()).rstrip(b"=").decode()
        assert (value, size) == (expected, str(len(files[name])))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_record_holds_and_all_else_is_kept(files: dict[str, bytes], tmp_path: Path, end: str) -> None:
    path = wheel(tmp_path / NAME, files, end=end)
    given, before, had = path.read_bytes(), listed(path), contents(path)
    add_to_package(path, output=tmp_path / "again.whl")
    assert path.read_bytes() == given
    summary = add_to_package(path)
    assert summary.package is not None
    assert (summary.package.changed, summary.package.size) == (2, path.stat().st_size)
    assert path.read_bytes() == (tmp_path / "again.whl").read_bytes()
    record_holds(path)
    now = contents(path)
    assert listed(path) == before
    assert {name for name in had if had[name] != now[name]} == {"x/a.so", "x/b.so", RECORD}
    assert [line for line in now[RECORD].splitlines() if b".so" not in line] == [
        line for line in had[RECORD].splitlines() if b".so" not in line
    ]
    assert now[RECORD].count(b"\r\n") == had[RECORD].count(b"\r\n")
    written = path.read_bytes()
    assert add_to_package(path).note == "has it already"
    assert path.read_bytes() == written
    remove_from_package(path)
    assert (contents(path), listed(path)) == (had, before)


def test_entries_that_stay_keep_their_compressed_bytes(files: dict[str, bytes], tmp_path: Path) -> None:
    """Also those of writers that cannot seek (sizes after the contents), and those with sizes of 64 bits."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError

    out = Pipe()
    kept = bytes(range(256)) * 300
    rows = "".join(row(name, data) for name, data in {**files, "x/kept": kept}.items()) + f"{RECORD},,\n"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in {**files, "x/kept": kept, RECORD: rows.encode()}.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=name == "x/kept") as file:
                file.write(data)
    path = tmp_path / NAME
    path.write_bytes(out.getvalue())
    before = contents(path)
    add_to_package(path)
    record_holds(path)
    assert before["x/kept"] == contents(path)["x/kept"]
    packed = zipfile.ZipFile(io.BytesIO(out.getvalue())).getinfo("x/kept").compress_size
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("x/kept").compress_size == packed
    if shutil.which("unzip"):
        done = subprocess.run(["unzip", "-tqq", path], check=False, capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_sizes_of_64_bits_are_not_taken_over(files: dict[str, bytes], tmp_path: Path) -> None:
    """They are those of the old contents. The other extra fields stay."""
    zip64 = struct.pack("<HHQQ", 1, 16, len(files["x/a.so"]), 0)
    other = struct.pack("<HHI", 0x7875, 4, 17)
    path = tmp_path / NAME
    rows = "".join(row(name, data) for name, data in files.items()) + f"{RECORD},,\n"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in {**files, RECORD: rows.encode()}.items():
            info = zipfile.ZipInfo(name)
            info.extra = other + zip64 + other if name == "x/a.so" else b""
            archive.writestr(info, data)
    add_to_package(path)
    record_holds(path)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("x/a.so").extra == other + other


def test_pip_installs_the_result(files: dict[str, bytes], tmp_path: Path) -> None:
    if importlib.util.find_spec("pip") is None:
        pytest.skip("no pip in this environment")
    path = wheel(tmp_path / NAME, files)
    add_to_package(path)
    options = ["--no-index", "--no-deps", "--quiet", "--target", str(tmp_path / "t")]
    pip = [sys.executable, "-W", "default", "-m", "pip"]  # what it deprecates is its own affair: make test-constraints
    subprocess.run([*pip, "install", *options, path], check=True)
    assert (tmp_path / "t/x/a.so").read_bytes() == contents(path)["x/a.so"]


@pytest.mark.parametrize("signature", ["jws", "p7s"])
def test_signed_wheels_are_refused_without_force(files: dict[str, bytes], tmp_path: Path, signature: str) -> None:
    path = wheel(tmp_path / NAME, {**files, f"{RECORD}.{signature}": b"signed"})
    given = path.read_bytes()
    for dry_run in (False, True):
        with pytest.raises(RefusedError, match=rf"signed: {RECORD}\.{signature}") as raised:
            add_to_package(path, dry_run=dry_run)
        assert raised.value.reason is Refusal.SIGNED
    assert path.read_bytes() == given
    assert f"must be signed again: {RECORD}.{signature}" in add_to_package(path, force=True).warnings
    plain = wheel(tmp_path / f"plain-{NAME}", {"x/__init__.py": b"", f"{RECORD}.{signature}": b"signed"})
    assert add_to_package(plain).note.startswith("nothing to add")  # what does not change may be signed


def refuse(path: Path, why: str) -> None:
    given = path.read_bytes()
    with pytest.raises(FormatError, match=f"^{path}: .*{why}"):
        add_to_package(path)
    assert path.read_bytes() == given


def test_wheels_with_a_broken_record_are_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    records: tuple[tuple[Callable[[str], str], str], ...] = (
        (lambda text: text.replace("x/a.so,sha256=", "x/a.so,sha256=A", 1), "x/a.so: its hash differs"),
        (lambda text: text.replace("x/data.bin,sha256=", "x/data.bin,sha256=A", 1), "x/data.bin: its hash"),
        (lambda text: text.replace(",20000\n", ",20001\n"), "x/data.bin: 20,000 bytes, but 20001"),
        (lambda text: "".join(line for line in text.splitlines(True) if "a.so" not in line), "x/a.so: not listed"),
        (lambda text: text.replace("x/a.so,sha256=", "x/a.so,md5=", 1), "x/a.so: hash md5"),
        (lambda text: text + "a,b\n", "2 columns"),
        (lambda text: text + "x/a.so,,\n", "a second row for x/a.so"),
        (lambda text: text + '"x', "not a wheel's RECORD"),
    )
    for record, why in records:
        refuse(wheel(tmp_path / NAME, files, record=record), why)
    path = wheel(tmp_path / NAME, files, record=lambda text: text + "x/gone,,\n")
    assert "RECORD lists x/gone, which is not there" in add_to_package(path).warnings


def test_zip_archives_that_are_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    def link(archive: zipfile.ZipFile) -> None:
        info = zipfile.ZipInfo("x/link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/passwd")

    def second(archive: zipfile.ZipFile) -> None:
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x/a.so", b"")

    for change, why in (
        (link, "x/link: a link, device or FIFO"),
        (second, "x/a.so: a second entry of this name"),
        (lambda archive: archive.writestr("../x", b""), "'../x': a name that leads out"),
        (lambda archive: archive.writestr("/x", b""), "'/x': a name that leads out"),
        (lambda archive: archive.writestr("y", b"y", zipfile.ZIP_BZIP2), "y: zip compression 12"),
        (lambda archive: archive.writestr("y.dist-info/RECORD", b""), "2 files"),
    ):
        path = wheel(tmp_path / NAME, files)
        with zipfile.ZipFile(path, "a") as archive:
            change(archive)
        refuse(path, why)


def central(data: bytearray, number: int) -> int:
    at = -1
    for _ in range(number + 1):
        at = data.index(b"PK\1\2", at + 1)
    return at


def test_overlapping_encrypted_and_wrongly_sized_entries_are_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    good = wheel(tmp_path / NAME, files).read_bytes()

    def changed(field: int, form: str, value: int, number: int) -> bytes:
        data = bytearray(good)
        struct.pack_into(form, data, central(data, number) + field, value)
        return bytes(data)

    a_so = good.index(b"PK\3\4", 1)
    for data, why in (
        (changed(8, "<H", 1, 2), "encrypted"),
        (changed(42, "<I", a_so, 3), "overlaps"),
        (changed(24, "<I", 25_000, 2), "x/data.bin: "),
        (changed(24, "<I", 15_000, 2), "x/data.bin: "),
        (changed(24, "<I", 0xFFFFFFF0, 2), "unpacks to more than"),
        (changed(16, "<I", 1, 2), "x/data.bin: "),
    ):
        path = tmp_path / NAME
        path.write_bytes(data)
        refuse(path, why)


def test_a_row_keeps_its_quotes_and_one_without_a_hash_stays(files: dict[str, bytes], tmp_path: Path) -> None:
    digest, size = row("x/a.so", files["x/a.so"]).rstrip("\n").split(",")[1:]

    def record(text: str) -> str:
        lines = text.splitlines(keepends=True)
        rows = {line.partition(",")[0]: line for line in lines}
        rows["x/a.so"] = f'"x/a.so","{digest}","{size}"\n'
        rows["x/b.so"] = "x/b.so,,\n"
        return "".join(rows.values())

    path = wheel(tmp_path / NAME, files, record=record)
    had = contents(path)[RECORD].decode()
    add_to_package(path)
    now = contents(path)
    new_digest, new_size = row("x/a.so", now["x/a.so"]).rstrip("\n").split(",")[1:]
    assert now["x/b.so"] != files["x/b.so"]
    assert now[RECORD].decode() == had.replace(digest, new_digest).replace(f'"{size}"', f'"{new_size}"')
    assert '"x/a.so","sha256=' in now[RECORD].decode()


def test_a_record_that_begins_with_a_byte_order_mark_keeps_it(files: dict[str, bytes], tmp_path: Path) -> None:
    plain, marked = wheel(tmp_path / NAME, files), wheel(tmp_path / f"marked-{NAME}", files, record="\ufeff{}".format)
    for path in (plain, marked):
        add_to_package(path)
    assert contents(marked)[RECORD] == b"\xef\xbb\xbf" + contents(plain)[RECORD]


@pytest.mark.parametrize("algorithm", ["md5", "sha1", "sha256", "sha512"])
def test_a_list_of_parts_with_an_old_checksum_is_a_warning(files: dict[str, bytes], tmp_path: Path, algorithm: str) -> None:
    """PEP 770: what others state of the wheel is not changed."""
    name = "x-1.0.dist-info/sboms/x.cdx.json"
    text = f'{{"content": "{hashlib.new(algorithm, files["x/a.so"]).hexdigest().upper()}"}}'.encode()
    path = wheel(tmp_path / NAME, {**files, name: text})
    [warning] = add_to_package(path).warnings
    assert warning == f"{name}: has the old checksums of x/a.so, x/b.so: must be made again"
    assert contents(path)[name] == text
    assert add_to_package(wheel(tmp_path / f"2{NAME}", {**files, name: b'{"content": "none"}'})).warnings == ()


def test_an_error_of_a_seek_is_no_pipe_and_no_damage(files: dict[str, bytes], tmp_path: Path) -> None:
    class Unseekable(io.BytesIO):
        def seek(self, *_: int) -> int:
            raise OSError(errno.EIO, "no position")

        tell = seek

    given = wheel(tmp_path / NAME, files)
    with zipfile.ZipFile(given) as archive, pytest.raises(OSError, match="Illegal seek"):
        write_zip(archive, [], {}, Unseekable())
    with pytest.raises(OSError, match="no position"), naming_damage(), zipfile.ZipFile(Unseekable(given.read_bytes())):
        pass
