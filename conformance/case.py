"""A section, what the specification says of it, and what a look-up may answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from conformance.rules import NONE
from conformance.specification import SENTENCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from conformance.machines import Machine
    from conformance.rules import Rule
    from conformance.writer import Written

Verdict = Literal["valid", "invalid", "open"]
CODE = (0x1000, 0x5000)
ADDRESS = 0x5000


class Probe(NamedTuple):
    """`answers`: a reader that does not refuse the section has to give one of them; of none, any that is not a crash will do."""

    pc: int
    answers: tuple[Rule, ...]


class Case(NamedTuple):
    """`sentences`: keys of SENTENCES: those that define a valid section, that an invalid one breaks, that leave one open.

    `why`: one sentence. `refusable`: a reader may refuse the section as a whole.
    """

    name: str
    version: int
    machine: Machine
    section: bytes
    verdict: Verdict
    sentences: tuple[str, ...]
    why: str
    probes: tuple[Probe, ...]
    address: int = ADDRESS
    code: tuple[int, int] = CODE

    @property
    def refusable(self) -> bool:
        return self.verdict != "valid"

    def as_json(self, readers: Iterable[dict[str, str]]) -> dict[str, Any]:
        chapters = [{"section": SENTENCES[key].section[self.version], "says": SENTENCES[key].says} for key in self.sentences]
        return {
            "name": self.name,
            "version": self.version,
            "abi": self.machine.name,
            "abi_number": self.machine.abi,
            "byte_order": self.machine.byte_order,
            "address": self.address,
            "code": {"start": self.code[0], "end": self.code[1]},
            "verdict": self.verdict,
            "refusable": self.refusable,
            "why": self.why,
            "specification": chapters,
            "probes": [{"pc": probe.pc, "answers": [answer.as_json() for answer in probe.answers]} for probe in self.probes],
            "readers": list(readers),
            "section": self.section.hex(),
        }


class Combination(NamedTuple):
    """A version and a machine: what each table of cases is made for."""

    version: int
    machine: Machine

    @property
    def name(self) -> str:
        return f"v{self.version}-{self.machine.name}"

    def valid(
        self, name: str, written: Written, sentence: str, why: str, answers: Mapping[int, Rule], *,
        address: int = ADDRESS, code: tuple[int, int] = CODE,
    ) -> Case:  # fmt: skip
        probes = tuple(Probe(pc, (answer,)) for pc, answer in answers.items())
        return Case(f"{self.name}-{name}", *self, written.data, "valid", (sentence,), why, probes, address, code)

    def open(self, name: str, written: Written, sentence: str, why: str, answers: Mapping[int, Sequence[Rule]]) -> Case:
        """Where the text is silent, a reader may also find nothing."""
        probes = tuple(Probe(pc, (*several, *([] if NONE in several else [NONE]))) for pc, several in answers.items())
        return Case(f"{self.name}-{name}", *self, written.data, "open", (sentence,), why, probes)

    def invalid(self, name: str, data: bytes, sentence: str, why: str, answers: Mapping[int, Sequence[Rule]]) -> Case:
        probes = tuple(Probe(pc, tuple(several)) for pc, several in answers.items())
        return Case(f"{self.name}-{name}", *self, data, "invalid", (sentence,), why, probes)
