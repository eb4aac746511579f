"""All checks of one file's section -> a report: findings, text, JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from cfi.errors import FormatError
from sframegen.checks.against_cfi.comparison import ALL_REGISTERS, Verdict, compare
from sframegen.checks.consumers import accepted, takes
from sframegen.checks.finding import Finding, Severity
from sframegen.checks.placement import in_file
from sframegen.checks.specification.wellformed import examine
from sframegen.checks.unusable import unusable
from sframegen.code.isa.machines import isa_of
from sframegen.conversion.convert import convert_sources
from sframegen.conversion.sources import find_sources
from sframegen.detached.companion import Companion, is_detached
from sframegen.detached.detached_file import ADDRESS
from sframegen.elf.records import ET_DYN, ET_EXEC
from sframegen.elf.text import count_of, printable
from sframegen.format.abi import abi_of
from sframegen.format.decode import open_section
from sframegen.format.locate import sframe_of, unloaded_of
from sframegen.program.libraries import imported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from sframegen.elf.file import ElfFile
    from sframegen.format.decode import SframeSection
    from sframegen.program.workers import Progress

Consumer = Literal["kernel", "glibc", "gnu", "all"]
CONSUMERS: tuple[Consumer, ...] = get_args(Consumer)
SHOWN = 10  # findings of one rule, unless all are asked for
WHOSE = {"section": "section", "cfi": "CFI"}  # compared with the instructions
BY_SECOND = {"same": "the same", "other": "other", "left_out": "left out", "unjudged": "not judged"}
SECOND_BYTES, SECOND_ROWS = 3 << 17, 1 << 17  # of the CFI, of the section: what is larger is read twice only if asked for
ALONE = f"{Companion.DETACHED_SECTION}, with nothing to compare it with: check the file that it is for, with this store"
IN_LINE = (Verdict.EQUAL, Verdict.WRONG, Verdict.ABSENT, Verdict.INEXPRESSIBLE)


@dataclass(frozen=True)
class CheckReport:
    """What `check` found in one file. Sizes are in bytes."""

    file: str  #: as given
    version: int = 0  #: of the section; 0 if none can be read
    functions: int = 0  #: of the section
    section_bytes: int = 0  #: its size
    code: Mapping[Verdict, int] = field(default_factory=dict)  #: executable bytes by Verdict; empty where nothing can be compared
    instructions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  #: of section and cfi: bytes by what the code says
    findings: tuple[Finding, ...] = ()  #: worst first, those of one rule together
    warnings: tuple[str, ...] = ()  #: from reading the CFI, a line each
    unusable: Mapping[str, int] = field(default_factory=dict)  #: bytes of code that the kernel cannot use, by note
    second_reader: Mapping[str, int] = field(default_factory=dict)  #: bytes of code by what pyelftools' reading of the CFI says

    def worst(self) -> Severity | None:
        """The highest severity of the findings; None without findings."""
        return max((finding.severity for finding in self.findings), default=None)

    def one_line(self) -> str:
        """The line that the command prints by default."""
        counts = [(sum(finding.severity is severity for finding in self.findings), severity) for severity in reversed(Severity)]
        found = ", ".join(count_of(count, severity.name.lower()) for count, severity in counts[:2] if count)
        line = f"{printable(self.file)}: {found or 'good'}"
        if self.version:
            line += f"; SFrame version {self.version}, {count_of(self.functions, 'function')}"
            line += ", not loaded" * any(finding.rule == "not-loaded" for finding in self.findings)
            said = [f"{self.code[verdict]:,} {verdict.value}" for verdict in IN_LINE if self.code.get(verdict)]
            line += f"; bytes of code: {', '.join(said)}" if said else ""
        if any(self.second_reader.values()):
            line += f"; by pyelftools: {', '.join(f'{n:,} {BY_SECOND[what]}' for what, n in self.second_reader.items() if n)}"
        for who, code in self.instructions.items():
            if any(code.values()):
                line += f"; {WHOSE[who]} by the instructions: {', '.join(f'{n:,} {what}' for what, n in code.items() if n)}"
        return line

    def lines(self, least: Severity, *, shown: int | None = SHOWN) -> Iterator[str]:
        """The findings of that severity and above, at most `shown` of each rule; None for all."""
        for group in _by_rule(self.findings):
            if group[0].severity < least:
                break
            for finding in group[:shown]:
                yield f"  {_line(finding)}"
                for one in finding.instructions:
                    yield f"    {'>' if one.here else ' '} {one.address:#x}  {one.text}"
            if shown is not None and len(group) > shown:
                first = group[0]
                yield f"  {first.severity.name.lower()}: {len(group) - shown:,} more of {first.rule}"

    def code_table(self) -> Iterator[str]:
        """A line for all executable bytes, and one for each verdict."""
        if self.code:
            total = sum(self.code.values())
            yield f"  {total:,} executable bytes"
            for verdict, count in self.code.items():
                yield f"  {count:{len(f'{total:,}')},} {100 * count / (total or 1):6.2f} %  {verdict.value}"

    def strict(self) -> CheckReport:
        """The same report, with warnings as errors."""
        worse = {Severity.WARNING: Severity.ERROR}
        findings = [finding._replace(severity=worse.get(finding.severity, finding.severity)) for finding in self.findings]
        return replace(self, findings=_worst_first(findings))

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; docs/json.md has the keys."""
        code = {verdict.name.lower(): count for verdict, count in self.code.items()}
        findings = [
            finding._asdict()
            | {
                "severity": finding.severity.name.lower(),
                "instructions": [one._asdict() for one in finding.instructions],
            }
            for finding in self.findings
        ]
        return asdict(replace(self, findings=())) | {"code": code, "findings": findings, "warnings": list(self.warnings)}


def _by_rule(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Worst first."""
    groups: dict[tuple[Severity, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.consumer, finding.rule), []).append(finding)
    return sorted(groups.values(), key=lambda group: -group[0].severity)


def _worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for group in _by_rule(findings) for finding in group)


@dataclass
class ReportDraft:
    """A report that is being made; what is found comes in any order."""

    file: str
    version: int = 0
    functions: int = 0
    section_bytes: int = 0
    code: Mapping[Verdict, int] = field(default_factory=dict)
    instructions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unusable: Mapping[str, int] = field(default_factory=dict)
    second_reader: Mapping[str, int] = field(default_factory=dict)

    def add_error(self, rule: str, message: str) -> None:
        """Unless another is known, of which it is a consequence."""
        if all(finding.severity is not Severity.ERROR for finding in self.findings):
            self.findings.append(Finding(rule, Severity.ERROR, message))

    def report(self) -> CheckReport:
        return CheckReport(**(vars(self) | {"findings": _worst_first(self.findings), "warnings": tuple(self.warnings)}))


def check_file(
    elf: ElfFile,
    *,
    detached: memoryview | None = None,
    consumer: Consumer = "all",
    debug_file: Path | None = None,
    instructions: bool = False,
    second_reader: bool | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
) -> CheckReport:
    """Check a program or library. Raises FormatError if it is neither, or its segments or its debug file cannot be read.

    With `instructions` also for an ABI whose instructions are not read. `detached`: a section for a file that has none itself.
    `second_reader` None: where the CFI is small.
    """
    if elf.header.e_type not in (ET_EXEC, ET_DYN):
        raise elf.error("neither a program nor a library, nor an object")
    if instructions:
        isa_of(abi_of(elf))
    draft = ReportDraft(elf.name, findings=in_file(elf))
    try:
        found = _located(elf, detached)
        if found is None:
            severity = Severity.NOTE if instructions else Severity.ERROR  # the CFI is compared with the instructions
            draft.findings.append(Finding("none", severity, "no SFrame section; sframegen add-section makes one"))
        else:
            loaded = detached is None and unloaded_of(elf) is None
            section = _check_section(elf, *found, draft, consumer, loaded=loaded)
            if is_detached(elf):
                draft.findings.append(Finding("cfi-unreadable", Severity.ERROR, ALONE))
                return draft.report()
            if section is not None:
                _compare(elf, section, draft, debug_file, second_reader, progress)
    except FormatError as error:
        draft.add_error("unreadable", str(error))
    if instructions:
        _check_instructions(elf, detached, draft, debug_file, jobs, progress)
    return draft.report()


def _located(elf: ElfFile, detached: memoryview | None) -> tuple[memoryview, int] | None:
    return sframe_of(elf) if detached is None else (detached, ADDRESS)


def _check_section(
    elf: ElfFile, data: memoryview, address: int, draft: ReportDraft, consumer: Consumer, *, loaded: bool
) -> SframeSection | None:
    """Check the section by itself; None if it is for another ABI than its file."""
    facts = examine(data, address, executable=elf.executable_ranges(), byte_order=elf.byte_order)
    facts.loaded = loaded
    draft.findings += [*facts.findings, *accepted(facts, consumer)]
    section = open_section(data, address)
    draft.version, draft.functions, draft.section_bytes = section.header.version, section.header.num_fdes, len(data)
    abi = abi_of(elf)
    if section.abi.sframe_id != abi.sframe_id:
        return None
    table = section.table
    if consumer in ("all", "kernel") and takes(facts, "kernel"):
        draft.unusable, notes = unusable(table, elf.executable_ranges(), abi)
        draft.findings += notes
    return section


def _compare(
    elf: ElfFile,
    section: SframeSection,
    draft: ReportDraft,
    debug_file: Path | None,
    second_reader: bool | None,
    progress: Progress | None,
) -> None:
    """Compare the section with its file's CFI, as sframegen reads it and as pyelftools does."""
    abi = abi_of(elf)
    try:
        sources = find_sources(elf, debug_file)
        truth = compare(elf, section, sources, abi)
    except FormatError as error:
        draft.findings.append(Finding("cfi-unreadable", Severity.ERROR, f"nothing to compare it with: {error}"))
        return
    draft.code, draft.warnings = truth.code, sources.warnings
    draft.findings += truth.findings
    size, rows = sum(len(one.data) for one in sources.sections), len(section.table.row_rule)
    if second_reader is None:
        second_reader = size <= SECOND_BYTES and rows <= SECOND_ROWS
        if not second_reader:
            message = f"{size:,} bytes of CFI are not read by pyelftools as well unless asked for: that takes longer"
            draft.findings.append(Finding("second-reader-skipped", Severity.NOTE, message))
    if second_reader and sources.sections:
        imported("elftools.dwarf.callframe", "RegisterRule")
        from sframegen.checks.second.agreement import second_reading  # noqa: PLC0415 - pyelftools, where it is used

        second = second_reading(elf, section, sources, truth, abi, progress)
        draft.second_reader = second.code
        draft.findings += second.findings


def _check_instructions(
    elf: ElfFile, detached: memoryview | None, draft: ReportDraft, debug_file: Path | None, jobs: int, progress: Progress | None
) -> None:
    """Check the rules against the instructions; the CFI's alone if the section is damaged."""
    from sframegen.checks.against_code.instructions import hold  # noqa: PLC0415 - capstone takes longer to import than most files to check

    abi = abi_of(elf)
    section = None
    try:
        found = _located(elf, detached)
        if found is not None:
            opened = open_section(*found)
            section = opened.table if opened.abi.sframe_id == abi.sframe_id else None
    except FormatError:  # which is a finding already
        pass
    try:
        sources = find_sources(elf, debug_file)
        converted = convert_sources(sources, elf.executable_ranges(), abi._replace(base_registers=ALL_REGISTERS))
        held = hold(elf, abi, converted, section, jobs, progress)
    except FormatError as error:
        draft.add_error("cfi-unreadable", f"nothing to hold against the instructions: {error}")
        return
    draft.warnings = sources.warnings
    draft.instructions = held.code
    draft.findings += held.findings


def _line(finding: Finding) -> str:
    places = [
        *([f"{finding.address:#x}"] if finding.address is not None else []),
        *([f".sframe+{finding.offset:#x}"] if finding.offset is not None else []),
    ]
    where = f" ({', '.join(places)})" if places else ""
    return f"{finding.severity.name.lower()}: {finding.rule}{where}: {finding.message}"
