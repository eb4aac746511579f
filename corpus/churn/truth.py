"""What the stacks of the programs of this study can be: each function of theirs has one caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sframegen.stack.walking.ends import End

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

UNFINISHED = (End.NO_PROCESS, End.NO_MAPPING, End.NO_TABLE)  # walked to the end later, from a copy of the stack

WORK = ("outer", "middle", "inner")
PLUGINS = range(1, 5)
ANY = "*"  # frames of libraries of the system, or none
MISSING = "missing"
OURS = ("restless", "executed", "executed-static", "plugin1.so", "plugin2.so", "plugin3.so", "plugin4.so")
# Called from many places, or without callers, or code of the compiler's.
LEAVES = (
    "is_over",
    "_init",
    "_fini",
    "_start",
    "frame_dummy",
    "register_tm_clones",
    "deregister_tm_clones",
    "__do_global_dtors_aux",
)


def _work(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{part}" for part in WORK)


def _chains() -> Iterator[tuple[str, ...]]:
    """From the outermost function to the innermost. ANY: a call through the system's libraries."""
    run = (ANY, "main", "run")
    yield (*run, "do_busy", *_work("busy"))
    yield (*run, "do_fork", "in_child", *_work("forked"))
    yield (*run, "do_fork", *_work("between"))
    yield (*run, "do_exec")
    yield (*run, "do_spawn")
    yield (*run, "do_threads")
    yield (ANY, "in_thread", *_work("threaded"))
    yield (ANY, "main", "executed_outer", "executed_inner")
    for number in PLUGINS:
        plugin = f"p{number}"
        yield (*run, "do_plugins", "use_plugin", *(f"{plugin}_{part}" for part in ("enter", "middle", "inner")), *_work(plugin))
        yield (*run, "do_plugins", ANY, f"{plugin}_begin")


def _beginnings(chains: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return all stacks that there are while a chain is called: with and without frames of libraries inside the innermost."""
    return {(*chain[:length], *last) for chain in chains for length in range(1, len(chain) + 1) for last in ((), (ANY,))}


def _ends(stacks: Iterable[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return what is left of stacks whose outermost frames are missing."""
    return {stack[at:] for stack in stacks for at in range(len(stack))}


POSSIBLE = {tuple(_short) for _short in _beginnings(_chains())}
POSSIBLE |= {stack[:-1] for stack in POSSIBLE if stack[-2:] == (ANY, ANY)}
POSSIBLE_ENDS = _ends(POSSIBLE)


class Verdict(NamedTuple):
    """Samples. `wrong`: by stack that cannot be; `guessed_wrong`: those with a marked guess."""

    samples: int
    complete: int
    incomplete: dict[str, int]
    lost: dict[str, int]
    wrong: dict[str, int]
    guessed_wrong: int
    notes: list[str] = []  # noqa: RUF012 - of the profile; nobody changes it

    @property
    def faults(self) -> list[str]:
        """Each wrong stack, with what the profile says of itself."""
        return [f"wrong: {stack} ({count}; lost: {self.lost}; {self.notes})" for stack, count in self.wrong.items()]

    @property
    def share_lost(self) -> float:
        """Samples without a stack, and those whose walk ended because mappings or tables were not known, of all."""
        lost = sum(self.lost.values())
        unknown = sum(self.incomplete.get(end.words, 0) for end in UNFINISHED)
        return (lost + unknown) / max(1, self.samples + lost)


def judge(profile: dict[str, Any], *, ours: bool = True) -> Verdict:
    """`profile`: the JSON. `ours`: all stacks are of the programs of this study; else they are only counted."""
    frames = profile["frames"]
    complete = samples = guessed_wrong = 0
    incomplete: dict[str, int] = {}
    wrong: dict[str, int] = {}
    for stack in profile["stacks"]:
        named = [frames[number] for number in stack["frames"]]
        count = stack["samples"]
        samples += count
        if stack["complete"]:
            complete += count
        else:
            incomplete[stack["end"]] = incomplete.get(stack["end"], 0) + count
        if ours and not is_possible(named, complete=stack["complete"]):
            if any(frame["guessed"] for frame in named):
                guessed_wrong += count
            else:
                text = ";".join(frame["function"] for frame in named)
                wrong[text] = wrong.get(text, 0) + count
    return Verdict(samples, complete, incomplete, profile["lost"], wrong, guessed_wrong, profile.get("notes", []))


def is_possible(frames: list[dict[str, Any]], *, complete: bool) -> bool:
    """`frames`: the outermost first, as in the JSON."""
    short: list[str] = []
    for frame in frames:
        if frame["kind"] in (MISSING, "kernel"):
            continue
        name = frame["function"] if frame["object"] in OURS and frame["function"] not in LEAVES else ANY
        if frame["object"] == "executed-static" and not name.startswith(("executed", "main")):
            name = ANY  # the libraries are in the program
        if name != ANY or short[-1:] != [ANY]:
            short.append(name)
    return not short or tuple(short) in (POSSIBLE if complete else POSSIBLE_ENDS)
