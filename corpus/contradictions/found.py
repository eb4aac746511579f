"""What is found in one file, and the record that is kept of it, a line of JSON each."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import sframegen
from sframegen.base.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

SAYS = re.compile(r"(.*), ([\d,]+) bytes?: (?:the )?(?:CFI|section|section and CFI) says? (.*); the instructions say (.*)$")


class Place(NamedTuple):
    """Code of one function that is contradicted."""

    address: int
    name: str  #: of the function, with the offset in it; or of the section
    size: int  #: bytes
    claim: str  #: what the CFI says, where it begins
    proof: str  #: what the instructions say
    instructions: list[str]  #: around it; `>` marks where it begins


class Found(NamedTuple):
    """In one file."""

    file: str
    size: int  #: of the file
    code: dict[str, int]  #: bytes that the CFI describes, by what the instructions make of them
    places: list[Place]
    refused: str = ""  #: why it could not be looked at


def look(file: Path) -> Found:
    try:
        report = sframegen.check(file, instructions=True)
    except (FormatError, OSError, MemoryError) as error:
        return Found(str(file), file.stat().st_size, {}, [], str(error) or type(error).__name__)
    places = [place(finding) for finding in report.findings if finding.instructions]
    return Found(str(file), file.stat().st_size, dict(report.instructions.get("cfi", {})), places)


def place(finding: sframegen.Finding) -> Place:
    match = SAYS.match(finding.message)
    if match is None:
        raise ValueError(finding.message)
    name, size, claim, proof = match.groups()
    lines = [f"{'>' if one.here else ' '} {one.address:x}: {one.text}" for one in finding.instructions]
    return Place(finding.address or 0, name, int(size.replace(",", "")), claim, proof, lines)


def written(found: Found) -> str:
    return json.dumps(found._asdict() | {"places": [one._asdict() for one in found.places]})


def read(lines: Iterable[str]) -> Iterator[Found]:
    for line in lines:
        record: dict[str, Any] = json.loads(line)
        yield Found(**record | {"places": [Place(**one) for one in record["places"]]})
