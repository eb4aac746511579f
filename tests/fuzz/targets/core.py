"""Core files: what a snapshot has of them, and the stacks in them, with sections as they are and with those of conversions."""

from __future__ import annotations

import json
from contextlib import suppress

from cfi.errors import FormatError
from sframegen.stack.core.core_process import Core
from sframegen.stack.snapshot.snapshot import StackError
from sframegen.stack.tracer import Tracer
from tests.support.memory_files import written

SEEDS = ("core-AMD64", "core-AArch64", "core-s390x", "core-listed", "core-gcc")
MAX_FRAMES = 64


def run(data: bytes) -> None:
    with suppress(FormatError, StackError):
        core = Core(written(data))
        for mapping in core.mappings:
            assert mapping.start < mapping.end
            core.memory.read(mapping.start, 64)
            with suppress(FormatError, OSError):
                core.file_of(mapping)
        for convert in (False, True):
            threads = Tracer(convert=convert, limit=MAX_FRAMES).trace(core)
            assert all(0 < len(thread.frames) <= MAX_FRAMES for thread in threads)
        json.dumps(core.remarks())
