"""Adds an SFrame section to existing ELF binaries, made from their DWARF call frame information, and reads such sections.

    import sframegen

    summary = sframegen.add_section("prog")             # in place; a Summary: .functions, .rows, .coverage, .left_out
    section = sframegen.read("prog")                    # an SframeSection; also of bytes, and of file objects
    rule = section.rule_at("main+4")                    # or of an address; a Rule: .cfa, .ra, .fp; None without one
    print(section.equation(rule))                       # (cfa, ra, fp) = (rsp + 16, *(cfa - 8), *(cfa - 16))
    print(section.base(rule.cfa), rule.cfa.offset)      # rsp 16
    for function in section.functions():                # an SframeFunction: .name, .start, .size, .rows
        print(function.name, len(function.rows))

    report = sframegen.check("prog")                    # a CheckReport: .findings, .worst(), .code
    sframegen.convert("prog", 2, output="prog.v2")      # a VersionChange: another version of the format
    sframegen.merge(["a.o", "b.o"], "all.o")            # a Merged: one section from those of objects
    sframegen.remove("prog")                            # a SectionRemoval: the file as it was before add_section

Functions that change a file replace it completely, or not at all. Results are values: `to_json()` gives their fields. Each error is
a SframegenError: FormatError (bad input), RefusedError (good input, not changed; `.reason` says why), VerificationError (a fault of
sframegen). docs/library.md has recipes, and says which names are stable.

The names are those of `sframegen.api`, which is imported when one of them is first used, so that `import sframegen` is fast.
"""

from __future__ import annotations

__version__ = "0.4.0"  # setup reads it here
TYPE_CHECKING = False  # not typing's, because importing typing would delay every start of the program
if TYPE_CHECKING:
    from sframegen.api import *  # noqa: F403 - type checkers take names from a wildcard import for public ones

    __all__: list[str]
else:  # type checkers do not see this __getattr__, which would make any name valid for them

    def __getattr__(name: str) -> object:
        from importlib import import_module  # noqa: PLC0415 - see above

        from sframegen.program.own_packages import refuse_foreign_packages  # noqa: PLC0415

        refuse_foreign_packages()
        api = import_module("sframegen.api")  # `from sframegen import api` would call this function again
        if name == "__all__":
            return api.__all__
        if name in api.__all__:
            return getattr(api, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted([*__getattr__("__all__"), "__all__", "__version__"])
