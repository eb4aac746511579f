"""How the frames of a profile are named: the options, as one value."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import click

from sframegen.cli.shared.output import note
from sframegen.profile.report.naming import NO_DETAIL, name_stacks
from sframegen.profile.symbols.debuginfod import Debuginfod
from sframegen.profile.symbols.source_lines import Detail
from sframegen.program.libraries import PLACES
from sframegen.stack.names.debug_files import DebugFiles

if TYPE_CHECKING:
    from sframegen.profile.collected import Collected
    from sframegen.profile.report.named import Named
    from sframegen.profile.report.naming import KnownNames


class Naming(NamedTuple):
    """What frames are named with. `lines`, `inlined`: None if the user did not say."""

    lines: bool | None
    inlined: bool | None
    debuginfod: bool
    collapse_runtime: bool

    def named(self, collected: Collected, detail: Detail) -> Named:
        """Name all that was collected."""
        fetch = Debuginfod() if self.debuginfod else None
        named = name_stacks(collected, collapse_runtime=self.collapse_runtime, detail=detail, debug_files=DebugFiles(fetch))
        if fetch:
            named.notes += fetch.notes
            fetch.close()
        return named

    def named_live(self, collected: Collected, known: KnownNames) -> Named:
        """Name what is still being collected, without what would take longer than to sample it."""
        detail = self.detail() if self.lines or self.inlined else NO_DETAIL
        return name_stacks(collected, collapse_runtime=self.collapse_runtime, detail=detail, known=known, live=True)

    def detail(self) -> Detail:
        """Ends the command in one line if the user asks for what needs a library that is not installed."""
        if (self.lines or self.inlined) and find_spec(PLACES.module) is None:
            from sframegen.cli.installation.install_commands import getting  # noqa: PLC0415 - not for each run

            note(f"source lines and inlined functions need {PLACES.project}; to install it: {getting([PLACES])}")
            click.get_current_context().exit(1)
        return Detail(self.lines is not False, self.inlined is not False, self.lines is True, bool(self.lines or self.inlined))
