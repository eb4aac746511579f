"""Runs all rules. Exit status 1: there are offenders."""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

from tools.lint import code, compiled, documents, packaging
from tools.lint.sources import tracked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RULES = [rule for module in (code, compiled, documents, packaging) for rule in module.RULES]


def offenders(rule: Callable[[], Iterator[str]]) -> Iterator[str]:
    """Where a file that it reads is missing or has another form, the rule is broken, and the others are still tried."""
    try:
        yield from rule()
    except (ImportError, LookupError, OSError, SyntaxError, ValueError) as error:
        yield f"tools/lint: {rule.__name__}: {error!r}"


def main() -> int:
    gc.disable()  # of no use to trees, which stay to the end
    found = [offender for rule in RULES for offender in offenders(rule)]
    print(*found, f"{len(RULES)} rules, {len(tracked())} files, {len(found)} offenders", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
