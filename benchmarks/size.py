"""Sizes of sections: each level's against GNU as + ld on the same sources, and against .eh_frame + .eh_frame_hdr."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.ours import open_input, section_of
from benchmarks.places import CORPUS, corpus_file
from corpus.samples import sample_files
from sframegen.tables.levels import LEVELS

if TYPE_CHECKING:
    from collections.abc import Iterator

EH_FRAME, GNU = ".eh_frame + .eh_frame_hdr", "GNU's .sframe"


def measure(_rounds: int) -> Iterator[Figure]:
    for name, file in (sample_files() | {name: corpus_file(name) for name in CORPUS}).items():
        source = open_input(file)
        gnu = source.elf.section(".sframe")
        yield Figure("size", EH_FRAME, name, source.eh_frame_bytes + source.sources.eh_frame_hdr_bytes, "bytes")
        sizes = {f"--optimize {level}": len(section_of(source, level)) for level in LEVELS}
        if gnu:
            sizes[GNU] = gnu.header.sh_size
            yield Figure("size", GNU, name, sizes[GNU], "bytes")
        for base in (EH_FRAME, GNU):
            for what, size in sizes.items():
                if what != base:
                    yield Figure("size", what, name, size, "bytes", base)
