"""What this machine can sample, whether or not we may use it."""

from __future__ import annotations

from typing import Any, NamedTuple

from sframegen.profile.events.attributes import EventError
from sframegen.profile.events.names import Event, available
from sframegen.profile.events.probes import FORMS, why_no
from sframegen.profile.events.tracefs import Tracefs


class Listing(NamedTuple):
    """`missing`: kinds of events that this machine does not have, with the reason."""

    events: list[Event]
    tracepoints: list[str]
    forms: dict[str, str]
    missing: dict[str, str]

    def lines(self) -> list[str]:
        shown = [", ".join(event.names) for event in self.events]
        shown += [f"{form}  ({kind})" for kind, form in self.forms.items() if kind != "tracepoint"]
        shown += [f"no {kind}: {why}" for kind, why in self.missing.items()]
        return shown + self.tracepoints

    def fields(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "events": [
                {"name": event.name, "aliases": list(event.aliases), "by_frequency": event.by_frequency} for event in self.events
            ],
            "tracepoints": self.tracepoints,
            "forms": self.forms,
            "missing": self.missing,
        }


def list_events() -> Listing:
    """Look. Raises nothing: what is missing has its reason."""
    sources = {"uprobe": "uprobe", "usdt": "uprobe", "kprobe": "kprobe"}
    missing = {kind: why for kind, source in sources.items() if (why := why_no(source))}
    try:
        with Tracefs() as tracefs:
            tracepoints = tracefs.names()
    except EventError as error:
        tracepoints, missing["tracepoint"] = [], str(error)
    return Listing(available(), tracepoints, {kind: form for kind, form in FORMS.items() if kind not in missing}, missing)
