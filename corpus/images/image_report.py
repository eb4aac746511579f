"""The results in Markdown: docs/reports/images.md."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from corpus.images.image_trial import PROGRAMS
from corpus.images.layered import MORE, run
from corpus.report_pages import linux

if TYPE_CHECKING:
    from corpus.images.image_trial import Trial

HEAD = Path(__file__).with_name("head.md")
SIZES = ("layers", "new layer", "image before", "image after")
COLUMNS = ("", "ELF files", "given a section", *SIZES, "time", "programs", "`dpkg -V`", "`check`")


def markdown(trials: list[Trial], seconds: float) -> str:
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, trials)]
    lines = [HEAD.read_text(), *(f"| {' | '.join(row)} |" for row in rows), ""]
    lines += [
        "Layers of a docker-archive are not compressed. In place, a layout keeps its old documents. Time is that of the whole",
        "command, with the verification of each changed file. The last three columns count programs that print what they printed",
        "before, files that differ from their package, all of which were given a section, and sections that `sframegen check`",
        "accepts.",
        "",
    ]
    refused = Counter(why.partition(": ")[2] for trial in trials[:1] for why in trial.refused)
    if refused:
        lines += [
            "Files that are refused and unchanged; the others without a section have no call frame information:",
            "",
            "| files | reason |",
            "| --- | --- |",
        ]
        lines += [f"| {count} | {why} |" for why, count in refused.most_common()]
        lines.append("")
    faults = [f"- {trial.name}: {fault}" for trial in trials for fault in trial.faults]
    lines += ["## Faults", "", *(faults or ["None."]), ""]
    lines += [
        "## Programs",
        "",
        f"Packages: {', '.join(MORE)}, and what they depend on; {trials[0].entries:,} names in the image.",
        "",
    ]
    lines += [f"- {name}: `{' '.join(text.split())}`" for name, text in PROGRAMS.items()]
    versions = ", ".join(run(tool, "--version").split("\n")[0] for tool in ("skopeo", "umoci", "mmdebstrap"))
    machine = f"{linux()}, {os.cpu_count()} processors, load {os.getloadavg()[2]:.0f}"
    return "\n".join([*lines, "", f"{versions}; {machine}; {seconds:.0f} s.", ""])


def _row(trial: Trial) -> tuple[str, ...]:
    layers = " + ".join(f"{size / 1e6:.1f}" for size in trial.layers)
    return (
        trial.name,
        f"{trial.elf_files:,}",
        f"{trial.given:,}",
        f"{layers} MB",
        f"{trial.new_layer / 1e6:.1f} MB",
        f"{trial.bytes_before / 1e6:.1f} MB",
        f"{trial.bytes_after / 1e6:.1f} MB",
        f"{trial.seconds:.1f} s",
        f"{trial.programs} of {len(PROGRAMS)}",
        f"{trial.packaged:,}",
        f"{trial.checked:,}",
    )
