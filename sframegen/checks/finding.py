"""The findings of a check with their severities, and the report of one file or package, as text or JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from enum import Enum, IntEnum

from sframegen.base.quick_typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args
from sframegen.base.text import format_count, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Consumer = Literal["kernel", "glibc", "gnu", "arm64-kernel", "all"]
Consumer.__doc__ = (
    "A reader of sections to check for: the Linux kernel, glibc, GNU binutils, arm64 kernels for their own, or all of them."
)
CONSUMERS: tuple[Consumer, ...] = get_args(Consumer)


class Severity(IntEnum):
    """How bad a finding is."""

    NOTE = 0  #: good to know
    WARNING = 1  #: harmless, or a stack trace ends early
    ERROR = 2  #: the section has wrong rules, or is not accepted


class Instruction(NamedTuple):
    """An instruction near a finding."""

    address: int  #: link-time address
    text: str  #: in Intel's syntax or Arm's
    here: bool  #: True: the finding is about the state before this instruction


class Finding(NamedTuple):
    """A problem of a section, or a note about it."""

    rule: str  #: the check's stable name
    severity: Severity  #: how bad it is
    message: str  #: one line
    consumer: str = ""  #: the consumer with this demand; empty for the specification's rules
    offset: int | None = None  #: bytes from the start of the section
    address: int | None = None  #: link-time address of the code
    instructions: tuple[Instruction, ...] = ()  #: near the address, if the finding is about instructions


class Verdict(Enum):
    """The comparison of section and CFI for a byte of executable code. The value is the text for people."""

    # sweep.pxd repeats the order.

    EQUAL = "as the CFI says"  #: the section has the CFI's rule
    ABSENT = "missing: expressible, but not covered"  #: the section has none, though SFrame can express the CFI's
    INEXPRESSIBLE = "missing: not expressible in SFrame"  #: the section has none, as SFrame cannot express the CFI's
    WRONG = "wrong"  #: the section has another rule than the CFI
    UNDESCRIBED = "covered without CFI"  #: the section has a rule, the CFI has none
    SILENT = "neither covered nor described by CFI"  #: neither has a rule


MAX_SHOWN = 10  # findings of one rule that are printed, unless all are asked for
SOURCE_LABELS = {"section": "section", "cfi": "CFI"}  # what is compared with the instructions
SECOND_READER_LABELS = {"same": "the same", "other": "other", "left_out": "left out", "unjudged": "not judged"}
COUNTED_SEVERITIES = (Severity.ERROR, Severity.WARNING)
RULE_NO_SECTION, RULE_SECTION_MOVED = "no-sframe", "section-place"  # rules
MOVED_HINT = "; another tool moved the section away from its headers: run add-section after that tool"
VERDICT_PHRASES = {
    Verdict.EQUAL: "match it",
    Verdict.WRONG: "do not",
    Verdict.ABSENT: "are not covered",
    Verdict.INEXPRESSIBLE: "cannot be expressed",
}  # how the default line goes on after a number of bytes of code with CFI


@dataclass(frozen=True)
class CheckedPackage:
    """A package that `check` was given: `CheckReport` for each file in it."""

    kind: str  #: "wheel", "deb", "tar", ...
    entries: int  #: files, directories, links
    elf_files: int  #: programs, libraries and their debug files
    without_section: int  #: programs and libraries without a section
    refused: tuple[str, ...]  #: files that could not be checked, a line each
    files: tuple[CheckReport, ...]  #: reports of files that have a section, in their order

    def one_line(self) -> str:
        line = f"{self.kind}, {format_count(self.elf_files, 'ELF file')}, {len(self.files):,} checked"
        return line + f", {self.without_section:,} without a section" * bool(self.without_section)


@dataclass(frozen=True)
class CheckReport:
    """The result of `check` for one file, or a package. Sizes are in bytes."""

    file: str  #: as given
    version: int = 0  #: of the section; 0 if none can be read
    functions: int = 0  #: of the section
    section_bytes: int = 0  #: its size
    code: Mapping[Verdict, int] = field(default_factory=dict)  #: executable bytes by Verdict; empty without a comparison
    instructions: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  #: for section and cfi: bytes of code by verdict
    findings: tuple[Finding, ...] = ()  #: worst first, those of one rule together
    warnings: tuple[str, ...] = ()  #: from reading the CFI, a line each
    unusable: Mapping[str, int] = field(default_factory=dict)  #: bytes of code that the kernel cannot use, by note
    second_reader: Mapping[str, int] = field(default_factory=dict)  #: bytes of code, compared with pyelftools' reading of the CFI
    package: CheckedPackage | None = None  #: if the file is a package; `findings` then exclude those of its files

    @property
    def lacks_section(self) -> bool:
        """True if there is no section, and that is an error."""
        return any(finding.rule == RULE_NO_SECTION and finding.severity is Severity.ERROR for finding in self.findings)

    def worst(self) -> Severity | None:
        """Return the highest severity of the findings, including those of files in a package; None without findings."""
        return max((finding.severity for finding in self._all_findings()), default=None)

    def _all_findings(self) -> Iterator[Finding]:
        yield from self.findings
        for part in self.package.files if self.package else ():
            yield from part.findings

    def one_line(self) -> str:
        """Return the line that the command prints by default."""
        counts = Counter(finding.severity for finding in self._all_findings())
        summary = [format_count(counts[severity], severity.name.lower()) for severity in COUNTED_SEVERITIES if counts[severity]]
        if self.package is not None:
            if self.package.refused:
                summary.append(f"{len(self.package.refused):,} refused")
            elif not self.package.files and not summary:
                summary.append("nothing to check")
        line = f"{printable(self.file)}: {', '.join(summary) or 'OK'}"
        if self.package is not None:
            line += f": {self.package.one_line()}"
        if self.version:
            line += f": SFrame {self.version}, {format_count(self.functions, 'FDE')}"
            line += ", not loaded" * any(finding.rule == "not-loaded" for finding in self.findings) + self._format_cfi_match()
        if self.instructions and not self.version and not any(any(code.values()) for code in self.instructions.values()):
            line += "; no section and no CFI: nothing was compared"
        for source, code in self.instructions.items():
            if counts_text := ", ".join(f"{count:,} {verdict}" for verdict, count in code.items() if count):
                line += f"; {SOURCE_LABELS[source]} by the instructions: {counts_text}"
        return line + MOVED_HINT * any(finding.rule == RULE_SECTION_MOVED for finding in self.findings)

    def _format_cfi_match(self) -> str:
        """Return the part of the default line that says how much of the code matches the CFI; empty without CFI."""
        counts = {verdict: self.code.get(verdict, 0) for verdict in VERDICT_PHRASES}
        total, equal = sum(counts.values()), counts.pop(Verdict.EQUAL)
        if not total:
            return ", no CFI to compare with" * any(finding.rule == "cfi-none" for finding in self.findings)
        amount = f"all {total:,}" if equal == total else f"{equal:,} of {total:,}"
        others = [f", {count:,} {VERDICT_PHRASES[verdict]}" for verdict, count in counts.items() if count]
        text = f", {amount} bytes of code with CFI match it{''.join(others)}"
        by_second = {key: count for key, count in self.second_reader.items() if count}
        if by_second.keys() <= {"same"}:
            return text + ", confirmed by pyelftools" * bool(by_second)
        return f"{text}; by pyelftools: {', '.join(f'{count:,} {SECOND_READER_LABELS[key]}' for key, count in by_second.items())}"

    def lines(self, least: Severity, *, shown: int | None = MAX_SHOWN) -> Iterator[str]:
        """Yield the lines of findings with at least that severity, at most `shown` of each rule; None for all."""
        for group in _group_by_rule(self.findings):
            if group[0].severity < least:
                break
            for finding in group[:shown]:
                yield f"  {_format_finding(finding)}"
                for instruction in finding.instructions:
                    yield f"    {'>' if instruction.here else ' '} {instruction.address:#x}  {instruction.text}"
            if shown is not None and len(group) > shown:
                first = group[0]
                yield f"  {first.severity.name.lower()}: {len(group) - shown:,} more of {first.rule}"

    def code_table(self) -> Iterator[str]:
        """Yield a line for all executable bytes, and one for each verdict."""
        if self.code:
            total = sum(self.code.values())
            yield f"  {total:,} executable bytes"
            for verdict, count in self.code.items():
                yield f"  {count:{len(f'{total:,}')},} {100 * count / (total or 1):6.2f} %  {verdict.value}"

    def strict(self) -> CheckReport:
        """Return the same report with warnings as errors."""
        raised = {Severity.WARNING: Severity.ERROR}
        findings = [finding._replace(severity=raised.get(finding.severity, finding.severity)) for finding in self.findings]
        package = self.package and replace(self.package, files=tuple(part.strict() for part in self.package.files))
        return replace(self, findings=_sort_worst_first(findings), package=package)

    def to_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints; docs/json-schema.json has the keys."""
        code = {verdict.name.lower(): count for verdict, count in self.code.items()}
        findings = [
            finding._asdict()
            | {"severity": finding.severity.name.lower(), "instructions": [one._asdict() for one in finding.instructions]}
            for finding in self.findings
        ]
        report = asdict(replace(self, findings=(), package=None))
        report |= {"code": code, "findings": findings, "warnings": list(self.warnings)}
        if self.package is not None:
            files = [part.to_json() for part in self.package.files]
            report["package"] = vars(self.package) | {"refused": list(self.package.refused), "files": files}
        return report


def _group_by_rule(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return the findings grouped by rule, the worst groups first."""
    groups: dict[tuple[Severity, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.consumer, finding.rule), []).append(finding)
    return sorted(groups.values(), key=lambda group: -group[0].severity)


def _sort_worst_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for group in _group_by_rule(findings) for finding in group)


@dataclass
class ReportDraft:
    """A report under construction. Findings may be added in any order."""

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
        """Add an error, unless there already is one, because this one is then only a consequence."""
        if all(finding.severity is not Severity.ERROR for finding in self.findings):
            self.findings.append(Finding(rule, Severity.ERROR, message))

    def report(self) -> CheckReport:
        return CheckReport(**(vars(self) | {"findings": _sort_worst_first(self.findings), "warnings": tuple(self.warnings)}))


def _format_finding(finding: Finding) -> str:
    places = [f"{finding.address:#x}"] if finding.address is not None else []
    places += [f".sframe+{finding.offset:#x}"] if finding.offset is not None else []
    place = f" ({', '.join(places)})" if places else ""
    return f"{finding.severity.name.lower()}: {finding.rule}{place}: {finding.message}"
