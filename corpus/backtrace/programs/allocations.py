"""Allocates at many places and depths, the same in each run. Argument: rounds."""

from __future__ import annotations

import collections
import json
import re
import sys


def tree(depth: int) -> dict[str, object]:
    return {str(number): [tree(depth - 1), list(range(depth))] for number in range(3)} if depth else {}


total = 0
for _ in range(int(sys.argv[1])):
    text = json.dumps(tree(6))
    total += len(json.loads(text)) + len(re.findall(r"\d+", text)) + len(collections.Counter(text))
print(total)
