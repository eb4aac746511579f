"""Steps that the public functions which write files share: checks before the change, its plan, and its verification."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from linker.existing.in_place import Exchange, verify_exchange
from linker.existing.original import check_undo_record
from linker.files.signatures import find_signatures
from sframegen.api.add_summary import Plan, plan_from_change
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


class Result(Protocol):
    """A result of a public function that writes a file: a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def warnings(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Result)


def check_linked(elf: ElfFile) -> None:
    """Raise FormatError if the file is neither a program nor a library."""
    elf_type = elf.header.e_type
    if elf_type not in (ET.EXEC, ET.DYN):
        raise elf.error("a core file" if elf_type == ET.CORE else f"ELF type {elf_type} is neither a program nor a library")


def add_output(result: R, written: WriteResult) -> R:
    """Return the result with the path that was written, and with the warnings of the write."""
    return replace(result, output=written.output, warnings=result.warnings + written.warnings)


def plan_for_result(plan: InjectionPlan | Exchange) -> Plan:
    """Return the linker's plan in the form that results of public functions have."""
    if isinstance(plan, Exchange):
        return plan_from_change(plan, plan.slot.address, plan.slot.offset)
    return plan_from_change(plan, plan.section_address, plan.section_offset, plan.size)


def check_signatures(changed: list[ElfFile], target: Target, *, force: bool) -> tuple[str, ...]:
    """Return a warning if one of the files to be changed is signed; without `force`, raise RefusedError instead."""
    signatures = [signature for elf in changed for signature in find_signatures(elf, target.path, target.source)]
    text = ", ".join(dict.fromkeys(signatures))  # each once
    if text and not force:
        raise RefusedError(Refusal.SIGNED, f"signed: {text}")
    return (f"must be signed again: {text}",) if text else ()


def warn_of_rejection(elf: ElfFile, layout: Layout) -> tuple[str, ...]:
    """Return a warning for each consumer that rejects any section of this version, because the file has several code segments."""
    code = elf.executable_ranges()
    if len(code) == 1:
        return ()
    from sframegen.checks.consumers import find_unavoidable_rejections  # noqa: PLC0415 - few files have several

    return tuple(finding.message for finding in find_unavoidable_rejections(code, layout.version))


def verify_plan(plan: InjectionPlan | Exchange, base: Base, written: Path, reader: Reader) -> None:
    """Raise VerificationError if the written file differs from the plan, or its undo record does not restore the input."""
    raise_for_findings(find_differences(plan, base, written, reader) or check_undo_record(base.given, written))


def find_differences(plan: InjectionPlan | Exchange, base: Base, written: Path, reader: Reader) -> list[str]:
    """Return a line for each difference between the written file and the plan."""
    if isinstance(plan, Exchange):
        return verify_exchange(plan, base.given, written, reader)
    from linker.inject.verify import verify_injection  # noqa: PLC0415 - only needed to read results back

    return verify_injection(plan, base.elf, written, reader)


def raise_for_findings(findings: list[str]) -> None:
    """Raise VerificationError if there are any findings."""
    if findings:
        others = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
        raise VerificationError(f"verification failed, nothing was changed: {findings[0]}{others}")
