"""What is found, as docs/measured/contradictions.json has it."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from .kinds import KINDS, kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .found import Found, Place

NAMED = 28  # characters of a function's name
SHOWN = 12  # places of a file
EQUATION = "(cfa, ra, fp) = "


def results(every: Sequence[Found]) -> dict[str, object]:
    """`code_bytes`: that the CFI describes, by what the instructions make of them."""
    looked_at = [found for found in every if not found.refused]
    names = packages([found.file for found in looked_at if found.places])
    return {
        "files": len(looked_at),
        "bytes": sum(one.size for one in looked_at),
        "files_with_cfi": sum(any(found.code.values()) for found in looked_at),
        "contradicted_files": sum(bool(found.places) for found in looked_at),
        "contradicted_places": sum(len(found.places) for found in looked_at),
        "code_bytes": sum((Counter(found.code) for found in looked_at), Counter()),
        "refused": Counter(found.refused.rpartition(": ")[2] for found in every if found.refused),
        "kinds": {name: says for name, (says, _) in KINDS.items()},
        "contradicted": [record for name in KINDS for record in _records(looked_at, name, names)],
    }


def _records(every: Iterable[Found], name: str, names: dict[str, str]) -> Iterator[dict[str, object]]:
    """A record for each file: its first places, and at the first of them what the CFI says and what the code does."""
    for found in sorted(every, key=lambda one: (names.get(one.file, ""), one.file)):
        places = [place for place in found.places if kind(place) == name]
        if places:
            yield {
                "kind": name,
                "file": Path(found.file).name,
                "package": names[found.file],
                "places": len(places),
                "bytes": sum(place.size for place in places),
                "at": list(map(_at, places[:SHOWN])),
                "cfi": places[0].claim.removeprefix(EQUATION),
                "code": places[0].proof.removeprefix(EQUATION),
            }


def _at(place: Place) -> str:
    """Address, function, and bytes in parentheses."""
    name, _, offset = place.name.rpartition("+")
    shown = f" {name}+{offset}" if name and not name.startswith(".") and len(name) <= NAMED else ""
    return f"{place.address:#x}{shown} ({place.size})"


def packages(files: Iterable[str]) -> dict[str, str]:
    """Which package of the distribution each is of, as far as dpkg knows; of others the folder."""
    found = {}
    for file in files:
        parts = Path(file).parts
        found[file] = f"the corpus' {parts[parts.index('corpus') + 1]}" if "corpus" in parts else Path(file).parent.name
        for path in (file, file.removeprefix("/usr")):
            done = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found[file] = done.stdout.partition(": ")[0].partition(":")[0]
                break
    return found
