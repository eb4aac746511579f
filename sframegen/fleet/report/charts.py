"""The plots of the page, as Vega-Lite: Altair checks each against Vega-Lite's schema.

Each has its data with it, already counted: its size does not grow with the run. Colours and fonts are the page's, which
knows light from dark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import altair as alt

from sframegen.fleet.collecting import OTHER
from sframegen.fleet.report.fleet_figures import COVERAGE, GROWTH, STEPS
from sframegen.fleet.report.sums import quantiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sframegen.fleet.report.fleet_figures import FleetFigures
    from sframegen.fleet.report.sums import Sums

    Records = list[dict[str, Any]]

BARS = 12
ROW_HEIGHT = 26
STEP_NAMES = {"fetching": "fetch", "reading": "unpack", "converting": "convert", "writing": "pack"}
BYTES = "~s"


def charts(figures: FleetFigures) -> dict[str, dict[str, Any]]:
    """Return the plots by name, without those that have nothing to show."""
    made = {
        "coverage": _coverage(figures),
        "ratio": _ratio(figures),
        "ratioBySize": _ratio_by_size(figures),
        "growth": _growth(figures),
        "language": _ratio_of_groups(figures.by["language"]),
        "compiler": _ratio_of_groups(figures.by["compiler"]),
        "leftOut": _bytes_by_name(figures.totals.left_out.most_common()),
        "noCfi": _bytes_by_name(figures.totals.no_cfi.most_common()),
        "time": _time(figures),
    }
    return {name: _plain(chart) for name, chart in made.items() if chart is not None}


def _plain(chart: alt.TopLevelMixin) -> dict[str, Any]:
    """Return the chart as JSON with its data inside, as wide as the page makes it."""
    with alt.data_transformers.enable("default", consolidate_datasets=False):
        spec: dict[str, Any] = chart.properties(width="container").to_dict()
    spec.pop("config", None)
    return spec


def _chart(records: Records, height: int = 230) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=records)).properties(height=height)


def _bars(records: Records, x: alt.X, y: alt.Y, tooltip: list[alt.Tooltip]) -> alt.LayerChart:
    """Horizontal bars, each with its `label`."""
    base = _chart(records, ROW_HEIGHT * len(records)).encode(x=x, y=y, tooltip=tooltip)
    return base.mark_bar(cornerRadiusEnd=2) + base.mark_text(align="left", dx=4).encode(text="label:N")


def _lengths(field: str, records: Records) -> alt.X:
    """Bar lengths on a square-root scale, with room for the label of the longest bar."""
    longest = max(record[field] for record in records)
    return alt.X(f"{field}:Q", axis=None, scale=alt.Scale(type="sqrt", domain=[0, longest * 1.9], nice=False))


def _coverage(figures: FleetFigures) -> alt.LayerChart | None:
    records = []
    for place, (least, (files, code, left_out)) in enumerate(zip(COVERAGE, figures.coverage, strict=True)):
        name = "all" if not place else f"{least:g} % or more" if least else f"less than {COVERAGE[place - 1]:g} %"
        label = f"{files:,} files" if files != 1 else "1 file"
        records.append({"class": name, "files": files, "code": code, "leftOut": left_out, "label": label})
    if not any(record["files"] for record in records):
        return None
    return _bars(
        records,
        _lengths("files", records),
        alt.Y("class:N", sort=None, title=None),
        [
            alt.Tooltip("class:N", title="covered"),
            alt.Tooltip("files:Q", format=","),
            alt.Tooltip("code:Q", title="bytes with CFI", format=","),
            alt.Tooltip("leftOut:Q", title="of them left out", format=","),
        ],
    )


def _ratio(figures: FleetFigures) -> alt.Chart | None:
    totals = [sum(column) for column in zip(*figures.ratios.values(), strict=True)]
    if not totals or not all(totals):
        return None
    highest = max(figures.ratios)
    records = [
        {
            "from": place / 20,
            "to": (place + 1) / 20,
            "share": figures.ratios.get(place, (0, 0))[column] / totals[column],
            "of": name,
        }
        for column, name in enumerate(("files", "bytes of .eh_frame"))
        for place in range(highest + 2)
    ]
    return (
        _chart(records)
        .mark_area(interpolate="step-after", fillOpacity=0.25, line=True)
        .encode(
            x=alt.X("from:Q", title="section / (.eh_frame + .eh_frame_hdr)", scale=alt.Scale(nice=False)),
            y=alt.Y("share:Q", title="share", axis=alt.Axis(format="%"), stack=None),
            color=alt.Color("of:N", title="share of", legend=alt.Legend(orient="top", titleAnchor="middle", titleOrient="left")),
            tooltip=[
                alt.Tooltip("of:N", title="share of"),
                alt.Tooltip("from:Q", format=".2f"),
                alt.Tooltip("to:Q", format=".2f"),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )


def _ratio_by_size(figures: FleetFigures) -> alt.LayerChart | None:
    records = []
    for power, sums in sorted(figures.by["size"].items(), key=lambda item: int(item[0])):
        least, middle, most = quantiles(sums.ratios)
        records.append({"size": 2 ** int(power), "least": least, "middle": middle, "most": most, "files": sums.files})
    if not records:
        return None
    base = _chart(records).encode(
        x=alt.X(
            "size:Q",
            title="bytes of .eh_frame + .eh_frame_hdr",
            scale=alt.Scale(type="log", nice=False),
            axis=alt.Axis(format=BYTES, values=[10**power for power in range(1, 10)], grid=True),
        ),
        tooltip=[
            alt.Tooltip("size:Q", title="from bytes", format=","),
            alt.Tooltip("files:Q", format=","),
            alt.Tooltip("middle:Q", title="median", format=".2f"),
            alt.Tooltip("least:Q", title="10 % below", format=".2f"),
            alt.Tooltip("most:Q", title="10 % above", format=".2f"),
        ],
    )
    title = "section / (.eh_frame + .eh_frame_hdr)"
    band = base.mark_area(opacity=0.25).encode(y=alt.Y("least:Q", title=title), y2="most:Q")
    return band + base.mark_line(point=True).encode(y=alt.Y("middle:Q", title=title))


def _growth(figures: FleetFigures) -> alt.Chart | None:
    counted = {"ELF files": figures.growth, "packages": figures.package_growth}
    records = []
    for of, numbers in counted.items():
        total = sum(numbers)
        for place, number in enumerate(numbers if total else ()):
            least, most = GROWTH[place], GROWTH[place + 1] if place + 1 < len(GROWTH) else None
            name = f"less than {most:g} %" if not place else f"{least:g} % to {most:g} %" if most else f"{least:g} % or more"
            records.append({"class": name, "of": of, "number": number, "share": number / total})
    if not records:
        return None
    groups = len({record["of"] for record in records})
    return (
        _chart(records, (12 + 12 * groups) * len(GROWTH))
        .mark_bar(cornerRadiusEnd=2)
        .encode(
            x=alt.X("share:Q", title="share", axis=alt.Axis(format="%")),
            y=alt.Y("class:N", sort=None, title=None),
            yOffset=alt.YOffset("of:N", sort=None),
            color=alt.Color("of:N", sort=None, title=None, legend=alt.Legend(orient="top")),
            tooltip=[
                "of:N",
                alt.Tooltip("class:N", title="growth"),
                alt.Tooltip("number:Q", format=","),
                alt.Tooltip("share:Q", format=".1%"),
            ],
        )
    )


def _ratio_of_groups(groups: dict[str, Sums]) -> alt.LayerChart | None:
    """The middle of the ratios of each group, and where the most of them are."""
    largest = sorted(((sums.code, name) for name, sums in groups.items() if sums.ratios), reverse=True)[:BARS]
    records = []
    for _, name in largest:
        sums = groups[name]
        least, middle, most = quantiles(sums.ratios)
        whole = sums.section / sums.eh_frame if sums.eh_frame else middle
        records.append({"name": name, "least": least, "middle": middle, "most": most, "whole": whole, "files": sums.files})
    if not records:
        return None
    x, y = alt.Scale(zero=True), alt.Y("name:N", sort=None, title=None)
    tooltip = [
        alt.Tooltip("name:N"),
        alt.Tooltip("files:Q", format=","),
        alt.Tooltip("middle:Q", title="median of files", format=".2f"),
        alt.Tooltip("whole:Q", title="all bytes together", format=".2f"),
        alt.Tooltip("least:Q", title="10 % below", format=".2f"),
        alt.Tooltip("most:Q", title="10 % above", format=".2f"),
    ]
    base = _chart(records, ROW_HEIGHT * len(records)).encode(y=y, tooltip=tooltip)
    title = "section / (.eh_frame + .eh_frame_hdr)"
    lines = base.mark_rule(strokeWidth=7, strokeCap="round", opacity=0.3).encode(
        x=alt.X("least:Q", scale=x, title=title), x2="most:Q"
    )
    middles = base.mark_tick(thickness=3, size=14).encode(x=alt.X("middle:Q", title=title))
    return lines + middles + base.mark_point(filled=True, size=55).encode(x=alt.X("whole:Q", title=title))


def _bytes_by_name(counted: Sequence[tuple[str, int]]) -> alt.LayerChart | None:
    shown = [(name, number) for name, number in counted if number]
    rest = sum(number for _, number in shown[BARS:])
    shown = shown[:BARS] + [(OTHER, rest)] * bool(rest)
    if not shown:
        return None
    records = [{"name": name, "bytes": number, "label": _size(number)} for name, number in shown]
    return _bars(
        records,
        _lengths("bytes", records),
        alt.Y("name:N", sort=None, title=None),
        [alt.Tooltip("name:N"), alt.Tooltip("bytes:Q", format=",")],
    )


def _time(figures: FleetFigures) -> alt.Chart | None:
    records = []
    kinds: Iterable[tuple[str, list[float]]] = sorted(figures.steps.items(), key=lambda item: -item[1][0])[:BARS]
    for kind, (size, packages, *seconds) in kinds:
        if not size:
            continue
        for place, (step, used) in enumerate(zip(STEPS, seconds, strict=True)):
            records.append(
                {
                    "kind": kind,
                    "step": STEP_NAMES[step],
                    "order": place,
                    "rate": used / size * 1e9,
                    "seconds": used,
                    "packages": packages,
                }
            )
    if not any(record["seconds"] for record in records):
        return None
    rows = len({record["kind"] for record in records})
    return (
        _chart(records, max(ROW_HEIGHT * 2 * rows, 60))
        .mark_bar()
        .encode(
            x=alt.X("rate:Q", title="seconds of one process for 1 GB of packages"),
            y=alt.Y("kind:N", sort=None, title=None),
            color=alt.Color("step:N", sort=list(STEP_NAMES.values()), title=None, legend=alt.Legend(orient="top", columns=4)),
            order="order:Q",
            tooltip=[
                "kind:N",
                "step:N",
                alt.Tooltip("rate:Q", title="s for 1 GB", format=".1f"),
                alt.Tooltip("seconds:Q", title="s in all", format=",.1f"),
                alt.Tooltip("packages:Q", format=","),
            ],
        )
    )


def _size(number: int) -> str:
    """Return bytes as people read them: `4.2 MB`."""
    power = min((len(str(number)) - 1) // 3, 3)
    return f"{number / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB')[power]}"
