"""The results of a run, in Markdown: docs/reports/kernels.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpus.kernels.debian_kernels import Kernel

COLUMNS = (
    *("Debian's", "kernel", "machine", "verified", "re-used addresses"),
    *("samples", "complete", "equal", "from short copies", "in the vDSO"),
)
SUMS = ("samples", "complete", "equal", "short", "in_vdso")
HEAD = Path(__file__).with_name("head.md")


class Outcome(NamedTuple):
    """`found`: what the guest printed, or `failed`; `seconds` of the boot."""

    kernel: Kernel
    found: dict[str, Any]

    @property
    def fault(self) -> str:
        """Why it is not as it should be, one line; empty if all is well."""
        if "failed" in self.found:
            return str(self.found["failed"]).strip().splitlines()[-1]
        refused = self.found.get("refused")
        if self.kernel.too_old or refused:
            return "" if self.kernel.too_old and refused else refused or "it should be refused, and is not"
        if self.found["lost"]:
            return f"samples are lost: {self.found['lost']}"
        return "; ".join(
            f"{workload}: {one['differs'] or 'no sample'}"
            for workload, one in self.found["workloads"].items()
            if not one["samples"] or one["equal"] + one["short"] < one["samples"]
        )


def markdown(outcomes: Sequence[Outcome], about: str) -> str:
    lines = [
        HEAD.read_text(),
        about,
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
    ]
    for kernel, found in outcomes:
        names = (kernel.suite, found.get("release", "?"), found.get("machine", kernel.architecture))
        if "workloads" in found:
            sums = [sum(one[key] for one in found["workloads"].values()) for key in SUMS]
            cells = (f"{found['verified']:,}", "tracepoint" if found["tracepoint"] else "no tracepoint", *sums)
        else:
            cells = ("refused" if "refused" in found else "failed", *("",) * (1 + len(SUMS)))
        lines.append(f"| {' | '.join(map(str, (*names, *cells)))} |")
    refused = {one.found["refused"] for one in outcomes if "refused" in one.found}
    if refused:
        lines += ["", "What is printed for those that are refused:", "", *(f"    {message}" for message in sorted(refused))]
    faults = [f"- {one.kernel.name}: {one.fault}" for one in outcomes if one.fault]
    lines += ["", "Not as it should be:", "", *faults] if faults else ["", "All is as it should be."]
    return "\n".join(lines) + "\n"
