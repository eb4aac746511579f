"""Helpers shared by the public functions that write files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from linker.existing.in_place import Exchange, verify_exchange
from linker.existing.original import check_undo
from linker.files.signatures import signatures
from sframegen.api.add_summary import Plan, plan_of
from sframegen.base.errors import Refusal, RefusedError, VerificationError
from sframegen.elf.records import ET

if TYPE_CHECKING:
    from pathlib import Path

    from linker.existing.add_or_replace import Base
    from linker.files.read_back import Reader
    from linker.files.target import Target, WriteResult
    from linker.inject.plan import InjectionPlan
    from sframegen.elf.file import ElfFile
    from sframegen.format.layouts import Layout

UNLINKED = {ET.CORE: "a core file"}


class Result(Protocol):
    """A result of a public function that writes a file: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def warnings(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Result)


def check_linked(elf: ElfFile) -> None:
    """Raise FormatError if the file is neither a program nor a library."""
    kind = elf.header.e_type
    if kind not in (ET.EXEC, ET.DYN):
        raise elf.error(UNLINKED.get(kind, f"ELF type {kind} is neither a program nor a library"))


def with_written(result: R, written: WriteResult) -> R:
    return replace(result, output=written.output, warnings=result.warnings + written.warnings)


def plan_for_result(plan: InjectionPlan | Exchange) -> Plan:
    """Return the plan in the form that results have."""
    if isinstance(plan, Exchange):
        return plan_of(plan, plan.slot.address, plan.slot.offset)
    return plan_of(plan, plan.section_address, plan.section_offset, plan.size)


def check_signatures(changed: list[ElfFile], target: Target, *, force: bool) -> tuple[str, ...]:
    """Return a warning if a file to be changed is signed. Raises RefusedError without `force`."""
    found = ", ".join(dict.fromkeys(what for elf in changed for what in signatures(elf, target.path, target.source)))
    if found and not force:
        raise RefusedError(Refusal.SIGNED, f"signed: {found}")
    return (f"must be signed again: {found}",) if found else ()


def not_taken(elf: ElfFile, layout: Layout) -> tuple[str, ...]:
    """Return warnings that `check` will give for any section of this version, because the file has several code segments."""
    code = elf.executable_ranges()
    if len(code) == 1:
        return ()
    from sframegen.checks.consumers import rejected_anyhow  # noqa: PLC0415 - few files have several

    return tuple(finding.message for finding in rejected_anyhow(code, layout.version))


def verify_plan(plan: InjectionPlan | Exchange, base: Base, written: Path, reader: Reader) -> None:
    refuse(findings_of(plan, base, written, reader) or check_undo(base.given, written))


def findings_of(plan: InjectionPlan | Exchange, base: Base, written: Path, reader: Reader) -> list[str]:
    if isinstance(plan, Exchange):
        return verify_exchange(plan, base.given, written, reader)
    from linker.inject.verify import verify_injection  # noqa: PLC0415 - only needed to read results back

    return verify_injection(plan, base.elf, written, reader)


def refuse(findings: list[str]) -> None:
    if findings:
        more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise VerificationError(f"verification failed, nothing was changed: {findings[0]}{more}")
