"""Where the specification says what: numbers of its sections, by version, and the sentence in our words.

Sections of Version 2 whose number begins with 1.3 are those of Version 3's text, which lists the errata of Version 2.
"""

from __future__ import annotations

from typing import NamedTuple


class Sentence(NamedTuple):
    says: str
    section: dict[int, str]


def _of(says: str, one: str, two: str, three: str) -> Sentence:
    return Sentence(says, {version: number for version, number in ((1, one), (2, two), (3, three)) if number})


ERRATA = "V3 1.3"
SENTENCES = {
    "preamble": _of("A section begins with a magic number, a version and flags, and a header of 28 bytes.", "1.1", "2.1", "2.1"),
    "order": _of("A section is stored in the byte order of its target; the magic number tells which.", "1.1.1", "2.1.1", "2.1.1"),
    "version": _of("The versions are 1, 2 and 3.", "1.1.2", "2.1.2", "2.1.2"),
    "flags": _of("Flags that are not defined are zero.", "1.1.3", "2.1.3", "2.1.3"),
    "sorted": _of("The flag SORTED says that functions ascend by start address.", "1.1.3", "2.1.3", "2.1.3"),
    "frame-pointer": _of("The flag FRAME_POINTER says that all functions keep the frame pointer.", "1.1.3", "2.1.3", "2.1.3"),
    "pc-relative": _of("With the flag PCREL a start counts from its own field, else from the section's first byte.",
        "1.3", f"{ERRATA} erratum 1", "2.1.3"),
    "header": _of("The header counts functions and rows, and places the two sub-sections from its own end.", "1.2", "2.2", "2.2"),
    "tiles": _of("The two sub-sections tile the section; the length of the second is explicit.", "1.2", "2.2", "2.2"),
    "auxiliary": _of("An auxiliary header follows the header, and offsets count from its end.", "1.2", "2.2", "2.2"),
    "fixed": _of("The header says at which offset from the CFA FP and RA are, if the ABI fixes that.", "1.2", "2.2", "2.2"),
    "abi": _of("The header names the ABI by a number.", "1.2.1", "2.2.1", "2.2.1"),
    "index": _of("The index has the start, size and place of the rows of each function.", "1.3", "2.3", "2.3.1"),
    "attribute": _of("A function has a number of rows, their type, and a type of its own.", "1.3", "2.3", "2.3.2"),
    "info": _of("The function's info byte has the key of signed return addresses, the PC type and the type of its rows; unused "
        "bits have no meaning.", "1.3.1", "2.3.1", "2.3.3"),
    "signal": _of("A bit of the function's info byte marks signal frames.", "", "", "2.3.3"),
    "mask": _of("In a function of PC type MASK, rows hold for the PC modulo the size of the repeated block.",
        "1.3.2", "2.3.2", "2.3.3.1"),
    "fde-type": _of("There are two FDE types, DEFAULT and FLEX.", "", "", "2.3.3.2"),
    "no-rows": _of("A function of type DEFAULT without rows is an outermost frame.", "1.3", "2.3", "1.2"),
    "fre-type": _of("Row starts are unsigned numbers of 1, 2 or 4 bytes, the same in a whole function.",
        "1.3.3", "2.3.3", "2.3.3.3"),
    "row": _of("A row holds for a range of addresses that begins at its offset from the function's start.", "1.4", "2.4", "2.4"),
    "row-info": _of("A row has a number of data words of 1, 2 or 4 bytes, the CFA's base, and a bit for signed return addresses.",
        "1.4.1", "2.4.1", "2.4.1"),
    "outermost": _of("A row without data words says that RA is undefined: an outermost frame.", "1.4.1", f"{ERRATA} erratum 2",
        "2.4.1"),
    "amd64": _of("AMD64: the words are the offsets of CFA and FP; RA is at a fixed offset.", "1.4", "3.1", "3.1.1"),
    "aarch64": _of("AArch64: the words are the offsets of CFA, RA and FP; there is one word, or there are three.",
        "1.4", "3.2", "3.1.2"),
    "s390x": _of("s390x: the words are the offsets of CFA (less 160, divided by 8), RA and FP; an RA offset of 0 stands for none.",
        "", f"{ERRATA} erratum 1", "3.1.3"),
    "s390x-register": _of("s390x: an odd offset of RA or FP is a register number.", "", f"{ERRATA} erratum 1", ""),
    "flexible": _of("In a flexible row CFA, RA and FP have a control word and an offset each; a control word of 0 stands alone.",
        "", "", "3.2"),
    "cfa-register": _of("The CFA's control word names a base register.", "", "", "Appendix A"),
}  # fmt: skip


def about_words(machine: str) -> str:
    """The key of the sentence about a machine's data words."""
    return machine.removesuffix("-be")
