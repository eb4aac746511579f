"""The Debian packages that a run has written as a repository of APT, Packages and Release; the checksums of all that it wrote."""

from __future__ import annotations

import io
import tarfile
from contextlib import ExitStack
from datetime import UTC, datetime
from email.utils import format_datetime
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, BinaryIO, Self

from sframegen.base.errors import FormatError, SframegenError, naming
from sframegen.fleet.sources.fetching import digest
from sframegen.packages.debs import control_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from sframegen.fleet.output_directory import OutputDirectory
    from sframegen.fleet.result_rows import PackageResult, PackageRow

INDEX, RELEASE, REPLACED = "Packages", "Release", "replaced.txt"
OURS = ("Filename", "Size", "MD5sum", "SHA1", "SHA256", "SHA512")  # fields of an index, not of a package
RELEASE_TEXT = """Origin: sframegen
Label: sframegen
Description: packages with SFrame sections
Date: {date}
SHA256:
 {checksum} {size} {index}
"""


class WrittenPackages:
    """A block: `add` each package of a run. At its end, the index and the checksums are in the output."""

    def __init__(self, output: OutputDirectory, finding: Callable[[str], object]) -> None:
        """`finding`: called with a line for each package that cannot be in the index."""
        self.output = output
        self.finding = finding
        self.debs = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._index = stack.enter_context(TemporaryFile())
            self._replaced = stack.enter_context(TemporaryFile())
            self._files = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._files:
            if kind is None:
                self._put(REPLACED, self._replaced)
                if self.debs:
                    self._put(INDEX, self._index)
                    self._put(RELEASE, io.BytesIO(self._release()))
                else:
                    self._remove(INDEX, RELEASE)

    def add(self, result: PackageResult) -> None:
        """Raises OSError."""
        row = result.package
        if not row.new_sha256:
            return
        name = row.package.encode("utf-8", "surrogateescape")
        self._replaced.write(b"%s %s %s\n" % (row.sha256.encode(), row.new_sha256.encode(), name))
        if row.kind == "deb":
            try:
                self._index.write(self._paragraph(row))
                self.debs += 1
            except (SframegenError, ValueError, tarfile.TarError) as error:
                self.finding(f"{row.package}: not in {INDEX}: {error}")

    def _paragraph(self, row: PackageRow) -> bytes:
        from debian.deb822 import Deb822  # noqa: PLC0415 - of the extra `fleet`

        path = f"packages/{row.package}"
        with self.output.file(path) as file, naming(row.package):
            control = control_of(file)
        paragraph = Deb822(control)
        for name in OURS:
            paragraph.pop(name, None)
        if "Package" not in paragraph or "Version" not in paragraph:
            raise FormatError("its control file names no package, or no version")
        paragraph["Filename"] = path
        paragraph["Size"] = str(row.new_package_bytes)
        paragraph["SHA256"] = row.new_sha256
        return str(paragraph.dump()).encode("utf-8", "surrogateescape") + b"\n"

    def _release(self) -> bytes:
        self._index.flush()
        size = self._index.seek(0, io.SEEK_END)
        date = format_datetime(datetime.now(UTC), usegmt=True)
        return RELEASE_TEXT.format(date=date, checksum=digest(self._index), size=size, index=INDEX).encode()

    def _put(self, name: str, content: BinaryIO) -> None:
        content.seek(0)
        with self.output.new_file(name) as file:
            file.writelines(content)

    def _remove(self, *names: str) -> None:
        for name in names:
            with self.output.at(name) as location:
                location.unlink()
