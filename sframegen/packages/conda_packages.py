"""Conda packages. info/paths.json has the size and checksum of each file.

Version 1 is a tar archive (tar_archives.py); version 2, `.conda`, a zip archive of two: the files, and what is known of them.
"""

from __future__ import annotations

import json
import posixpath
import re
from typing import TYPE_CHECKING, Any, BinaryIO
from zipfile import ZIP_STORED, ZipFile

from cfi.errors import FormatError
from sframegen.packages.file_sums import ChangedFiles
from sframegen.packages.passing import Content, Pass, file_size, in_entry, part_of, replaced
from sframegen.packages.small_archives import SmallArchive
from sframegen.packages.tar_entries import Rules, pass_compressed
from sframegen.packages.zip_entries import checked_entries, damage_named, write_zip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sframegen.packages.file_sums import ChangedFile
    from sframegen.packages.passing import Passed, Visit
    from sframegen.packages.zip_entries import ZipEntry

PATHS = "info/paths.json"
ALGORITHMS = ("md5", "sha256")
RULES = Rules(devices=False)
TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}]', re.DOTALL)
FILES, ABOUT = "pkg-", "info-"  # how the names of the two archives begin


def renewed_list_of_paths(documents: dict[str, bytes], changes: ChangedFiles, links: dict[str, str]) -> dict[str, bytes]:
    """The list for the changed files. `links`: the file of each hard link. Raises FormatError where it was wrong before."""
    return {PATHS: renewed_paths(documents[PATHS], changes.of, links)}


def pass_conda(source: BinaryIO, visit: Visit, target: BinaryIO | None, *, force: bool) -> Passed:
    """A conda package of version 2. `pass_through` in kinds.py has the contract."""
    size = file_size(source)
    changes = ChangedFiles(visit, ALGORITHMS)
    with damage_named(), ZipFile(source) as given, Pass("conda", size, changes, force=force) as one:
        found = checked_entries(one, given, given.infolist())
        files, about = (_archive(found, prefix) for prefix in (FILES, ABOUT))
        with in_entry(about.path):
            known = SmallArchive(one, part_of(source, about.data, about.info.file_size), RULES)
        packed = one.free_file("files")
        with packed.open("w+b") as out:
            with in_entry(files.path):
                part = part_of(source, files.data, files.info.file_size)
                is_changed = pass_compressed(one, part, None if target is None else out, RULES, None)
            if is_changed and target is not None:
                with one.writing(), in_entry(about.path):
                    out.flush()
                    known.edit(PATHS, lambda text: renewed_paths(text, changes.of, one.hard_links))
                    contents = {
                        files.path: Content(packed, file_size(out), changed=True),
                        about.path: replaced(one.free_file("about"), known.packed()),
                    }
                    write_zip(given, found, contents, target)
        return one.passed()


def _archive(found: list[ZipEntry], prefix: str) -> ZipEntry:
    of_name = [entry for entry in found if entry.path.startswith(prefix) and ".tar" in entry.path]
    if len(of_name) != 1:
        raise FormatError(f"{len(of_name)} archives {prefix}*.tar.zst; a conda package has one")
    if of_name[0].info.compress_type != ZIP_STORED:
        raise FormatError(f"{of_name[0].path}: compressed by zip; conda packages have it stored")
    return of_name[0]


def renewed_paths(data: bytes, changes: dict[str, ChangedFile], links: dict[str, str]) -> bytes:
    """paths.json with other sizes and checksums, and nothing else changed in its text. Raises FormatError."""
    with in_entry(PATHS):
        try:
            text = data.decode()
            expected = json.loads(text)
            parts, at, listed = [], 0, set()
            for start, end in _objects(text):
                file = _path(json.loads(text[start:end]))
                change = changes.get(links.get(file, file))
                listed.add(file)
                if change is not None:
                    parts += [text[at:start], _renewed_object(text[start:end], file, change)]
                    at = end
            new = "".join((*parts, text[at:]))
            _renew_values(expected, changes, links)
            is_equal = json.loads(new) == expected
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise FormatError(f"no list of paths: {error}") from None
        if missing := next((path for path in changes if path not in listed), None):
            raise FormatError(f"{missing}: not listed")
        if not is_equal:
            raise FormatError("its checksums are written in a way that is not read")
        return new.encode()


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Where the objects are that have no others in them: those of files."""
    start = -1
    for token in TOKEN.finditer(text):
        if token[0] == "{":
            start = token.start()
        elif token[0] == "}" and start >= 0:
            yield start, token.end()
            start = -1


def _path(values: dict[str, Any]) -> str:
    path = values.get("_path")
    return posixpath.normpath(path) if isinstance(path, str) else ""


def _renewed_object(text: str, path: str, change: ChangedFile) -> str:
    values = json.loads(text)
    for key, old, new in _pairs(change):
        if key not in values:
            continue
        if values[key] != old:
            raise FormatError(f"{path}: its {key} is another one")
        shown_old, shown_new = json.dumps(old), json.dumps(new)
        text = re.sub(rf'("{key}"\s*:\s*){re.escape(shown_old)}(?![0-9.eE])', lambda found, new=shown_new: found[1] + new, text)  # type: ignore[misc]
    return text


def _renew_values(document: dict[str, Any], changes: dict[str, ChangedFile], links: dict[str, str]) -> None:
    """What the document is to say."""
    for values in document["paths"]:
        path = _path(values)
        if change := changes.get(links.get(path, path)):
            values.update({key: new for key, _, new in _pairs(change) if key in values})


def _pairs(change: ChangedFile) -> list[tuple[str, Any, Any]]:
    """The keys that a file's object can have, with the old and the new value."""
    return [
        ("size_in_bytes", change.old.size, change.new.size),
        *((one, change.old.digests[one], change.new.digests[one]) for one in ALGORITHMS),
    ]
