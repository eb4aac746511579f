#!/usr/bin/env -S python3.12 -X perf
"""Recursion, generators and callbacks of `sorted`, with trampolines for profilers."""

from __future__ import annotations

import sys
import time


def leaf(turns: int) -> int:
    total = 0
    for number in range(turns % 64 + 100):
        total += number
    return total


def deep(depth: int) -> int:
    return (deep(depth - 1) if depth else leaf(9)) + 1


def generates(number: int) -> int:
    return sum(leaf(one) for one in range(number % 5))


def by_callback(number: int) -> list[int]:
    return sorted(range(number % 9), key=key)


def key(number: int) -> int:
    return leaf(number) % 7


def work(number: int) -> int:
    return deep(number % 7) + generates(number) + len(by_callback(number))


def repeats() -> None:
    end, number = time.monotonic() + float(sys.argv[1]), 0
    while time.monotonic() < end:
        number += 1
        work(number)


repeats()
