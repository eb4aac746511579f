"""The suite on readers and linkers of others: `python -m corpus.conformance --help`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from conformance.__main__ import as_text, write_suite
from conformance.known_readers import MEASURED
from conformance.linked.mergers import all_links
from conformance.suite import all_cases
from corpus import measured
from corpus.conformance.dumps import CrashError, Tool, ToolReader, gnu, llvm
from tests.checks.readers.libsframe import LibSframe
from tests.support.peers import Peers, cache_directory

sys.path.append(str(Path(__file__).parents[2] / "conformance/runners"))
import run
import run_links

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conformance.case import Case

LIBSFRAME_VERSIONS = (2, 3)
MOST_FEATURES = 12  # of a version and machine that get a line each
KINDS = ("ok", "skipped", "refuses a valid section", "answers wrongly", "crashes or reads outside")
OK, SKIPPED, REFUSES, WRONG, CRASHES = KINDS


class Outcome(NamedTuple):
    kind: str
    detail: str = ""


def outcome(case: Case, tool: Tool, folder: Path) -> Outcome:
    shown = case.as_json([])
    if case.machine.abi not in tool.abis or case.version not in tool.versions:
        return Outcome(SKIPPED)
    try:
        wrong = list(run.faults(shown, ToolReader(tool, case, folder)))
    except NotImplementedError:
        return Outcome(SKIPPED)
    except CrashError as error:
        return Outcome(CRASHES, str(error))
    if not wrong:
        return Outcome(OK)
    return Outcome(REFUSES if wrong[0].startswith("refuses") else WRONG, wrong[0])


def libsframe_outcomes(library: str) -> dict[str, Outcome]:
    """GNU's decoder with a page that cannot be read after the section; probes are look-ups. Its answers are those of readelf."""
    kinds = {"": OK, "fails": OK, "rejects": OK, "reads out of bounds": CRASHES, "crashes": CRASHES}
    found = {}
    with LibSframe(library) as gnu_library:
        for case in all_cases():
            if case.version not in LIBSFRAME_VERSIONS:
                found[case.name] = Outcome(SKIPPED)
                continue
            does = gnu_library.outcome(case.section, [probe.pc - case.address for probe in case.probes])
            kind = kinds[does]
            if case.verdict == "valid" and does in ("fails", "rejects"):
                kind = REFUSES if does == "rejects" else OK
            found[case.name] = Outcome(kind, does)
    return found


def tools(peers: Peers) -> Iterator[Tool]:
    old = cache_directory() / "old-binutils"
    for suite, number, versions in (("bookworm", "2.40", (1,)), ("trixie", "2.44", (2,))):
        program = old / suite / "bin/readelf"
        if program.exists():
            yield Tool(f"GNU readelf {number}", (str(program), "--sframe"), versions, gnu, reports=("ra_signed", "key_b"))
    yield Tool("GNU readelf 2.47", (peers.tool("readelf"), "--sframe"), (2, 3), gnu)
    for program in (old / "llvm-22/bin/llvm-readelf-22", Path(peers.tool("llvm-readelf"))):
        if program.exists():
            name = f"llvm-readelf {version_of(str(program))}"
            yield Tool(name, (str(program), "--sframe"), (2,), llvm, reports=("ra_signed", "key_b"))


def version_of(program: str) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"\d+\.\d+(?:\.\d+)*", said)
    return match[0] if match else "of unknown version"


def linkers(peers: Peers) -> Iterator[tuple[str, str, str]]:
    """Name, program, ABI."""
    for abi, prefix in (("amd64", ""), ("aarch64", "aarch64-linux-gnu-"), ("s390x", "s390x-linux-gnu-")):
        yield f"GNU ld 2.47, {abi}", peers.tool(f"{prefix}ld"), abi
    yield f"mold {version_of(peers.tool('ld.mold'))}", peers.tool("ld.mold"), "amd64"
    yield f"lld {version_of(peers.tool('ld.lld'))}", peers.tool("ld.lld"), "amd64"


def link_faults(folder: Path, linker: str, abi: str) -> Iterator[tuple[str, list[str]]]:
    for link in all_links():
        if link.machine.name == abi:
            place = folder / "links" / link.name
            yield link.name, run_links.wrong_with(place, json.loads((place / "link.json").read_text()), linker)


def feature(name: str) -> str:
    """Without version and machine."""
    return re.sub(r"^v\d-(?:amd64|aarch64-be|aarch64|s390x)-", "", name)


def of_readers(results: dict[str, dict[str, Outcome]]) -> dict[str, object]:
    counts = [{"reader": name, **_counted(found)} for name, found in results.items()]
    return {"readers": counts, "failures": [record for name, found in results.items() for record in failures(name, found)]}


def _counted(found: dict[str, Outcome]) -> dict[str, int]:
    return {kind: sum(one.kind == kind for one in found.values()) for kind in KINDS}


def failures(reader: str, found: dict[str, Outcome]) -> Iterator[dict[str, object]]:
    """A record for each feature; for a version and machine of which many fail in one way, one for all of them."""
    failed = {case: one for case, one in found.items() if one.kind in (REFUSES, WRONG, CRASHES)}
    whole = Counter((case.version, case.machine.name, failed[case.name].kind) for case in all_cases() if case.name in failed)
    groups: dict[tuple[Any, ...], list[str]] = {}
    for case in all_cases():
        if case.name in failed:
            one = (case.version, case.machine.name, failed[case.name].kind)
            key = one if whole[one] > MOST_FEATURES and one[2] != CRASHES else (case.version, feature(case.name), one[2])
            groups.setdefault(key, []).append(case.name)
    for key, names in groups.items():
        detail = failed[names[0]].detail[:200]
        yield {"reader": reader, "first_section": names[0], "sections": len(names), "does": key[2], "detail": detail}


def of_linkers(results: dict[str, dict[str, list[str]]]) -> dict[str, object]:
    """Of each link that fails, its first fault."""
    counts = [
        {"linker": name, "links": len(found), "ok": sum(not wrong for wrong in found.values())} for name, found in results.items()
    ]
    failed = [
        {"linker": name, "link": link, "fault": wrong[0]}
        for name, found in results.items()
        for link, wrong in found.items()
        if wrong
    ]
    return {"linkers": counts, "link_failures": failed}


def main() -> None:
    parser = measured.argument_parser("corpus.conformance", __doc__)
    parser.add_argument("--measured", action="store_true", help="write conformance/measured.json, which the suite's cases quote")
    options = parser.parse_args()
    peers = Peers()
    readers: dict[str, dict[str, Outcome]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for tool in tools(peers):
            readers[tool.name] = {case.name: outcome(case, tool, folder) for case in all_cases()}
            print(tool.name, dict(Counter(one.kind for one in readers[tool.name].values())), file=sys.stderr, flush=True)
        readers["libsframe 2.47"] = libsframe_outcomes(peers.libsframe())
        suite = folder / "suite"
        write_suite(suite)
        linked = {name: dict(link_faults(suite, program, abi)) for name, program, abi in linkers(peers)}
    if options.measured:
        found = {
            name: {case: one.kind for case, one in cases.items() if one.kind in (REFUSES, WRONG, CRASHES)}
            for name, cases in readers.items()
        }
        MEASURED.write_text(as_text({name: cases for name, cases in found.items() if cases}))
    measured.write(options.json, {"sections": len(all_cases()), **of_readers(readers), **of_linkers(linked)})


if __name__ == "__main__":
    main()
