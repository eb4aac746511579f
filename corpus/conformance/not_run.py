"""Readers and linkers that the suite was not run on, and why: rows of docs/reports/conformance.md."""

from __future__ import annotations

NOT_RUN = (
    (
        "GNU readelf and ld 2.45, 2.46",
        "no suite of Debian has them: bookworm has 2.40, trixie 2.44, testing and sid 2.47.50, the backports none",
    ),
    (
        "glibc's `backtrace()`",
        (
            "no package has it: Debian's 2.43 and 2.44 are built without `--enable-sframe`. It was built for stacks "
            "([measured](../measured.md#stacks-that-glibc-walks)), but it reads the sections of loaded files only, and no function "
            "of it takes one. `check` restates it and the kernel's patches, and each case quotes that"
        ),
    ),
    ("elfutils 0.196", "eu-readelf, eu-stack, eu-stackprof, libdw, libelf and libasm do not have the word SFrame in them"),
    (
        "libunwind 1.8.1, LLVM's libunwind 23.1.4, framehop 0.13.3",
        "no file of Debian's packages has the word SFrame in it",
    ),
    ("wild", "not in Debian, PyPI or npm"),
    (
        "DataDog's Java profiler",
        "not in Debian, PyPI or npm; its reader is a part of the profiler, which walks stacks inside a Java process",
    ),
)
