"""What came of one kernel: a record of docs/measured/kernels.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from corpus.kernels.debian_kernels import Kernel

SUMS = ("samples", "complete", "equal", "short", "in_vdso")


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


def record(outcome: Outcome) -> dict[str, object]:
    """Samples are those of all three programs. `short`: from copies of a part of the stack; `in_vdso`: taken there."""
    kernel, found = outcome
    counted: dict[str, object] = {}
    if "workloads" in found:
        counted = {key: sum(one[key] for one in found["workloads"].values()) for key in SUMS}
    said: dict[str, object] = {key: found[key] for key in ("verified", "tracepoint", "refused", "failed") if key in found}
    release, machine = found.get("release", ""), found.get("machine", kernel.architecture)
    return {"suite": kernel.suite, "release": release, "machine": machine, **said, **counted, "fault": outcome.fault}
