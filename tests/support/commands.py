"""The command line: in this process, where a test can put something in the place of what it does, or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from click.testing import CliRunner, Result

from sframegen.cli.commands import cli


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)


def start(*arguments: object, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """It has ended when this returns."""
    command = [sys.executable, "-P", "-m", "sframegen", *map(str, arguments)]
    return subprocess.run(command, check=check, **({"capture_output": True, "text": True} | options))
