"""The whole description, as lines or as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys

from sframegen import __version__
from sframegen.cli.installation.tried_parts import all_parts, try_all
from sframegen.program.build import build_kind, packages_directory


def text(*, as_json: bool) -> str:
    """Needs no library, not even click."""
    facts = {
        "version": __version__,
        "build": build_kind(),
        "directory": packages_directory(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "machine": platform.machine(),
        "kernel": os.uname().release,
        "libc": " ".join(filter(None, platform.libc_ver())) or "unknown",
    }
    parts = try_all(list(all_parts()))
    if as_json:
        return json.dumps(facts | {"parts": [part._asdict() for part in parts]}, indent=2)
    lines = [f"sframegen {facts['version']} ({facts['build']}), in {facts['directory']}"]
    lines.append(f"Python {facts['python']}, {facts['executable']}")
    lines.append(f"{facts['machine']}, Linux {facts['kernel']}, {facts['libc']}")
    group = ""
    for part in parts:
        if part.group != group:
            group = part.group
            lines += ["", group]
        lines += [f"  {line}" for line in part.lines()]
    return "\n".join(lines)
