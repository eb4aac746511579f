"""Which way stacks are walked: in the kernel where that is allowed, else from copies of stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sframegen.profile.bpf.libbpf import LoadError
from sframegen.profile.copied_session import CopiedSession
from sframegen.profile.events.attributes import EventError
from sframegen.profile.kernel_session import KernelSession
from sframegen.profile.probe import probe

if TYPE_CHECKING:
    from sframegen.profile.sampling_plan import ProfilePlan

Session: TypeAlias = KernelSession | CopiedSession
KERNEL, COPIES = BACKENDS = ("kernel", "copies")


def open_session(plan: ProfilePlan, backend: str | None = None) -> tuple[Session, str]:
    """Return the session, and why it is not in the kernel: a line, empty if it is, or if `backend` asks for copies.

    Raises SframegenError if neither is allowed, or not the one that `backend` names.
    """
    needs = plan.needs_kernel_program
    if backend == COPIES:
        if needs:
            raise LoadError(f"{needs}: only with stacks that are walked in the kernel, not with {COPIES}")
        return CopiedSession(plan), ""
    try:
        return KernelSession(plan), ""
    except (LoadError, EventError) as error:
        if backend == KERNEL or plan.targets is None or needs:
            raise
        remedies = probe().remedies
        return CopiedSession(plan), "; ".join([f"falling back to stack copies: {error}", *remedies[:1]])
