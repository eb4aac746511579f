"""The result of add-section for one file, as numbers and as text, and the plan of a change that is not written yet."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from sframegen.base.quick_typing import TYPE_CHECKING, Any, NamedTuple
from sframegen.base.text import format_count, printable, sort_by_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from _typeshed import DataclassInstance

    from sframegen.conversion.coverage import CategoryBytes

# Each executable byte has a fate: whether a rule covers it, and why not. Group of fates -> its label.
GROUP_LABELS = {"covered": "covered", "left_out": "left out", "no_cfi": "no CFI", "synthesized": "synthesized"}
SUMMED_FIELDS = (  # the numeric fields of a Summary that `sum_summaries` adds up
    "functions", "functions_covered", "code_bytes", "covered_bytes", "rows", "section_bytes", "eh_frame_bytes",
    "eh_frame_hdr_bytes", "synthesized_functions", "synthesized_bytes", "final_calls", "final_calls_without_padding",
)  # fmt: skip


class Plan(NamedTuple):
    """What changes in a file. `str()` is a line for each change."""

    lines: tuple[str, ...]  #: each change, as text for people
    section_address: int | None = None  #: of the new section, as linked; 0 if not loaded; None if none is added to a linked file
    section_offset: int | None = None  #: file offset of the new section, in bytes; None likewise
    file_size: int | None = None  #: of the new file, in bytes; None if a section is exchanged where it is, and likewise

    def __str__(self) -> str:
        return "\n".join(self.lines)


def plan_from_change(
    change: object, section_address: int | None = None, section_offset: int | None = None, file_size: int | None = None
) -> Plan:
    """Return the plan of a change. `change`: an object whose `str()` has one line for each step."""
    return Plan(tuple(str(change).splitlines()), section_address, section_offset, file_size)


def result_to_json(result: DataclassInstance, plan: Plan | None) -> dict[str, Any]:
    """Return a result's fields as JSON values, with lists instead of tuples and the plan as a list of lines."""
    values = asdict(replace(result, plan=None))
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return lists | {"plan": None if plan is None else list(plan.lines)}


class Outcome(StrEnum):
    """The outcome for a file; of several files, the first of these that one of them has."""

    ADDED = "added"  #: it has a new section, or would have one
    UNCHANGED = "unchanged"  #: it has the same section already
    NOTHING = "nothing to add"  #: no call frame information, or none that SFrame can express


class Package(NamedTuple):
    """A package whose programs and libraries were given sections. Sizes are in bytes."""

    kind: str  #: "wheel", "deb", "tar", ...
    entries: int  #: files, directories, links
    elf_files: int  #: programs and libraries
    changed: int  #: those that were given a section
    refused: int  #: those that were not, each with a warning or a fault
    size_before: int  #: of the package
    size: int  #: of the package now; `size_before` if it was not written
    files: tuple[Summary, ...]  #: its programs and libraries without the refused ones, in their order

    def one_line(self, *, dry_run: bool = False) -> str:
        given = f" {'would be ' * dry_run}given a section" + f", {self.refused:,} refused" * bool(self.refused)
        line = self.kind + f", {self.changed:,} of {format_count(self.elf_files, 'ELF file')}{given}" * bool(self.elf_files)
        return line + f", {self.size_before:,} -> {self.size:,} bytes" * (self.size != self.size_before)

    def to_json(self) -> dict[str, Any]:
        return self._asdict() | {"files": [file.to_json() for file in self.files]}


@dataclass(frozen=True)
class Summary:
    """What `add_section` did to one file. Sizes are in bytes."""

    file: str  #: as given
    outcome: Outcome = Outcome.NOTHING  #: `added`, `unchanged`, `nothing to add`
    output: str = ""  #: the path written, "" if none
    functions: int = 0  #: functions with call frame information
    functions_covered: int = 0  #: those of which the section describes every byte
    code_bytes: int = 0  #: bytes of the functions with call frame information
    covered_bytes: int = 0  #: those for which the section has a rule
    rows: int = 0  #: of the section
    section_bytes: int = 0  #: its size; 0 if there is none
    unloaded: bool = False  #: no segment has it
    detached: str = ""  #: path of the file of its own that has it, "" if none
    eh_frame_bytes: int = 0  #: of the used parts of .eh_frame and .debug_frame
    eh_frame_hdr_bytes: int = 0  #: of .eh_frame_hdr
    cfi_sections: tuple[str, ...] = ()  #: names of the sections of these bytes
    synthesized_functions: int = 0  #: functions in code without call frame information
    synthesized_bytes: int = 0  #: their bytes; `code_bytes` does not include them
    fates: CategoryBytes = field(default_factory=dict)  #: all executable bytes, by group and fate
    ignored_fdes: Mapping[str, int] = field(default_factory=dict)  #: number of FDEs by reason
    final_calls: int = 0  #: functions whose last instruction is a call
    final_calls_without_padding: int = 0  #: those after which there is no padding for the call's rule
    plan: Plan | None = None  #: what changes in the file; None if nothing does
    note: str = ""  #: why the file is unchanged, or what the section replaced
    warnings: tuple[str, ...] = ()  #: a line each
    faults: tuple[str, ...] = ()  #: files in a package at which sframegen failed, through a fault of its own; a line each
    package: Package | None = None  #: if the file is one; the numbers are then the sums over its files

    @property
    def coverage(self) -> float:
        """Covered bytes in per cent of the code bytes; 0 if there is no call frame information."""
        return 100 * self.covered_bytes / self.code_bytes if self.code_bytes else 0.0

    @property
    def left_out(self) -> dict[str, int]:
        """Bytes of code by reason."""
        return self.fates.get("left_out", {})

    def one_line(self) -> str:
        """The line that the command prints by default."""
        file = printable(self.file)
        if self.package is not None:
            is_written = self.output or any(part.output for part in self.package.files)
            file += f": {self.package.one_line(dry_run=self.package.changed > 0 and not is_written)}"
        if not self.section_bytes:
            return f"{file}: {self.note}"
        functions = format_count(self.functions, "function") if self.code_bytes else "no CFI"
        shares = format_shares(self.covered_bytes, self.code_bytes, self.fates)
        line = (
            f"{file}: {functions}, {shares}, {format_count(self.rows, 'row')}; .sframe {format_count(self.section_bytes, 'byte')}"
        )
        line += ", not loaded" * self.unloaded + ", detached" * bool(self.detached)
        source_bytes = self.eh_frame_bytes + self.eh_frame_hdr_bytes
        if source_bytes:
            line += f", {self.section_bytes / source_bytes:.2f} of {' + '.join(self.cfi_sections)}"
        if self.synthesized_bytes:
            functions = format_count(self.synthesized_functions, "function")
            line += f"; {functions} of {format_count(self.synthesized_bytes, 'byte')} synthesized"
        return f"{line}; {self.note}" if self.note else line

    def details(self) -> list[str]:
        """Lines for what became of all executable bytes, and for what was left out, by reason."""
        lines = [f"  {self.functions_covered:,} of {format_count(self.functions, 'function')} covered from start to end"]
        lines += format_categories(self.fates)
        if self.final_calls:
            calls = f"{self.final_calls_without_padding:,} of {format_count(self.final_calls, 'function')} ending with a call"
            lines.append(f"  {calls}: no padding after it that could have the call's rule")
        lines += [f"  ignored: {format_count(number, 'FDE')}: {reason}" for reason, number in sort_by_count(self.ignored_fdes)]
        if self.package is not None:
            lines += [f"  {file.one_line()}" for file in self.package.files]
        return [*lines, f"  written: {printable(self.output)}"] if self.output else lines

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints; docs/json-schema.json has the keys."""
        result = result_to_json(replace(self, package=None), self.plan)
        if self.package is not None:
            result["package"] = self.package.to_json()
        return result


def format_shares(covered: int, code: int, fates: Mapping[str, Mapping[str, int]]) -> str:
    """Return as text the covered share of the code with CFI, and the share of all executable bytes, which include padding.

    `covered`, `code`: bytes with CFI that the section covers, and all bytes with CFI.
    """
    shares = [f"{format_percent(covered, code)} % of {format_count(code, 'byte')} with CFI covered"] if code else []
    executable = sum(sum(counts.values()) for counts in fates.values())
    if executable:
        with_rule = sum(sum(fates.get(group, {}).values()) for group in ("covered", "synthesized"))
        share = f"{format_percent(with_rule, executable)} % of {format_count(executable, 'executable byte')}"
        shares.append(share if code else f"{share} covered")
    return ", ".join(shares)


def format_percent(part: int, whole: int) -> str:
    """Return a percentage as text, rounded down so that 100.00 means that nothing is missing."""
    return f"{10_000 * part // whole / 100 if whole else 0.0:.2f}"


def sum_summaries(file: str, summaries: Sequence[Summary]) -> Summary:
    """Return one summary for `file` that adds up those of the objects, or of the ELF files, that it contains."""
    sums = {name: sum(getattr(summary, name) for summary in summaries) for name in SUMMED_FIELDS}
    ignored: Counter[str] = Counter()
    for summary in summaries:
        ignored.update(summary.ignored_fdes)
    outcomes = {summary.outcome for summary in summaries}
    return Summary(
        file=file, outcome=next((outcome for outcome in Outcome if outcome in outcomes), Outcome.NOTHING), **sums,
        cfi_sections=tuple(dict.fromkeys(name for summary in summaries for name in summary.cfi_sections)),
        fates={group: dict(counts) for group, counts in sum_categories(summaries).items()},
        ignored_fdes=dict(ignored), note="" if sums["section_bytes"] else "nothing to add",
        warnings=tuple(f"{summary.file}: {warning}" for summary in summaries for warning in summary.warnings),
    )  # fmt: skip


def format_categories(fates: CategoryBytes) -> list[str]:
    """Return a line for all executable bytes, and one for each category that has any; reasons for leaving code out by frequency."""
    ordered = {group: sort_by_count(counts) if group == "left_out" else counts.items() for group, counts in fates.items()}
    categories = [(GROUP_LABELS[group], *item) for group, items in ordered.items() for item in items]
    total_bytes = sum(size for *_, size in categories)
    width = len(f"{total_bytes:,}")
    lines = [f"  {size:{width},} {100 * size / total_bytes:6.2f} %  {group}: {fate}" for group, fate, size in categories if size]
    return [f"  {format_count(total_bytes, 'executable byte')}", *lines]


def sum_categories(summaries: Iterable[Summary]) -> CategoryBytes:
    """Return the bytes of all files by category, added up."""
    sums: CategoryBytes = {group: Counter() for group in ("covered", "left_out", "no_cfi")}
    for summary in summaries:
        for group, counts in summary.fates.items():
            sums.setdefault(group, Counter()).update(counts)
    return sums
