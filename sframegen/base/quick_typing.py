"""Names of typing, with a quick NamedTuple: typing's spends most of its time on the types of fields, which nothing asks for."""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, Protocol, Self, TextIO, TypeAlias, TypeVar, cast, get_args

__all__ = ["TYPE_CHECKING", "Any", "BinaryIO", "Literal", "NamedTuple", "NoReturn", "Protocol", "Self", "TextIO", "TypeAlias"]
__all__ += ["TypeVar", "cast", "get_args"]

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class MakesTuple(type):
        """The class of NamedTuple: makes a tuple of each class that is derived from that."""

        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, object]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, members)
            fields = tuple(members.get("__annotations__", ()))
            defaults = [members.pop(field) for field in fields if field in members]
            made = namedtuple(name, fields, defaults=defaults, module=members["__module__"])  # noqa: PYI024 - see above
            for member in members.keys() - {"__module__", "__annotations__"}:
                setattr(made, member, members[member])
            return made

    class NamedTuple(metaclass=MakesTuple):
        pass
