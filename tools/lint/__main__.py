"""Runs all rules. Exit status 1: there are offenders."""

from __future__ import annotations

import gc
import sys

from tools.lint import code, commands, compiled, documents, packaging, words
from tools.lint.sources import tracked


def main() -> int:
    gc.disable()  # of no use to trees, which stay to the end
    rules = [rule for module in (code, compiled, commands, documents, packaging, words) for rule in module.RULES]
    offenders = [offender for rule in rules for offender in rule()]
    print(*offenders, f"{len(rules)} rules, {len(tracked())} files, {len(offenders)} offenders", sep="\n")
    return bool(offenders)


if __name__ == "__main__":
    sys.exit(main())
