"""The names of `typing` that we use, with a NamedTuple that is defined faster, because it does not process the fields' types."""

from __future__ import annotations

from collections import namedtuple
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NoReturn, Protocol, Self, TextIO, TypeAlias, TypeVar, cast, get_args

__all__ = ["TYPE_CHECKING", "Any", "BinaryIO", "Literal", "NamedTuple", "NoReturn", "Protocol", "Self", "TextIO", "TypeAlias"]
__all__ += ["TypeVar", "cast", "get_args"]

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class NamedTupleMeta(type):
        """The metaclass of NamedTuple: it turns each class derived from NamedTuple into a tuple type."""

        def __new__(cls, name: str, bases: tuple[type, ...], members: dict[str, object]) -> type:
            if not bases:
                return super().__new__(cls, name, bases, members)
            fields = tuple(members.get("__annotations__", ()))
            defaults = [members.pop(field) for field in fields if field in members]
            tuple_type = namedtuple(name, fields, defaults=defaults, module=members["__module__"])  # noqa: PYI024 - see above
            for member in members.keys() - {"__module__", "__annotations__"}:
                setattr(tuple_type, member, members[member])
            return tuple_type

    class NamedTuple(metaclass=NamedTupleMeta):
        pass
