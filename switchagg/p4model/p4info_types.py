"""Types in P4Info: P4DataTypeSpec for a type, and P4TypeInfo for all named types that are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from switchagg.p4model import types as ty
from switchagg.p4model.ast import Annotation, find_annotation, own_name
from switchagg.p4model.errors import P4Error, unsupported
from switchagg.p4model.protobuf_text import Message, Value
from switchagg.p4model.types import Type, underlying, width_of

_KNOWN = {
    "abstract", "atomic", "controller_header", "defaultonly", "deprecated", "description", "brief", "hidden",
    "id", "length", "max_group_size", "name", "noSideEffects", "noWarn", "optional", "pkginfo", "priority",
    "pure", "synchronous", "tableonly", "selector_size_semantics", "max_member_weight", "platform_property",
}  # fmt: skip


def annotation_fields(annotations: Iterable[Annotation], skipped: Iterable[str] = ()) -> dict[str, Value]:
    """The fields `annotations` and `structured_annotations` of a message."""
    texts: list[str] = []
    structured: list[Message] = []
    for note in annotations:
        if note.structured:
            structured.append(_structured(note))
        elif note.name not in ("name", "id", "brief", "description", *skipped):
            texts.append(_annotation_text(note))
    return {"annotations": texts, "structured_annotations": structured}


def documentation(annotations: Iterable[Annotation]) -> Message | None:
    """@brief and @description."""
    notes = (note for note in annotations if note.name in ("brief", "description") and note.values)
    found = {note.name: str(note.values[0]) for note in notes}
    return Message(brief=found.get("brief"), description=found.get("description")) if found else None


def _annotation_text(note: Annotation) -> str:
    if not note.body:
        return f"@{note.name}"
    if note.name in _KNOWN and (note.values or note.pairs):
        parts = [_literal(each) for each in note.values]
        parts += [f"{key}={_literal(value)}" for key, value in note.pairs]
        return f"@{note.name}({', '.join(parts)})"
    return f"@{note.name}({note.body})"


def _literal(value: int | str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _structured(note: Annotation) -> Message:
    if note.body and not note.values and not note.pairs:
        raise unsupported("an expression in an annotation", note.location)
    values = [_expression(each) for each in note.values]
    pairs = [Message(key=key, value=_expression(value)) for key, value in note.pairs]
    return Message(
        name=note.name,
        expression_list=Message(expressions=values) if values else None,
        kv_pair_list=Message(kv_pairs=pairs) if pairs else None,
    )


def _expression(value: int | str | bool) -> Message:
    if isinstance(value, bool):
        return Message(bool_value=value)
    return Message(string_value=value) if isinstance(value, str) else Message(int64_value=value)


def translation(type_: Type) -> tuple[str, int | None] | None:
    """The URI of @p4runtime_translation and the width for the controller, None for a string."""
    if not isinstance(type_, ty.NewType):
        return None
    note = find_annotation(type_.annotations, "p4runtime_translation")
    if note is None:
        return None
    body = (note.body or "").split(",")
    uri = note.values[0] if note.values else body[0].strip().strip('"')
    if len(body) != 2 or not isinstance(uri, str):
        raise P4Error(
            '@p4runtime_translation takes a URI and a type, as in ("example.com/x", 32)', note.location
        )
    second = body[1].strip().replace(" ", "")
    if second == "string":
        return uri, None
    digits = second.removeprefix("bit<").removesuffix(">")
    if not digits.isdecimal():
        raise P4Error(
            f"`{second}` is no type that a controller can have: a number, bit<N> or string", note.location
        )
    return uri, int(digits)


def controller_width(type_: Type) -> int:
    """Bits of a value as the controller sees it; 0 where it is a string."""
    translated = translation(type_)
    if translated is not None:
        return translated[1] or 0
    if isinstance(underlying(type_), ty.ErrorType | ty.EnumType):
        return 0
    return width_of(type_) or 0


def type_name(type_: Type) -> Message | None:
    """The field `type_name` of what has a `type` of its own."""
    return Message(name=control_type_name(type_)) if isinstance(type_, ty.NewType) else None


def control_type_name(type_: Type) -> str:
    """A named type as the control plane knows it."""
    return own_name(str(type_), getattr(type_, "annotations", ()))


class TypeInfo:
    """Collects the types that the program's objects use."""

    def __init__(self, errors: Sequence[str]) -> None:
        self._errors = errors
        self._tables: dict[str, dict[str, Message]] = {}
        self._error: Message | None = None

    def message(self) -> Message:
        """P4TypeInfo."""
        order = ("structs", "headers", "header_unions", "enums", "error", "serializable_enums", "new_types")
        fields: dict[str, Value | None] = {**self._tables, "error": self._error}
        return Message(**{name: fields.get(name) for name in order})

    def spec(self, type_: Type) -> Message:
        """P4DataTypeSpec; named types are added to the collection."""
        match type_:
            case ty.BitType() | ty.IntType() | ty.VarbitType():
                return Message(bitstring=_bitstring(type_))
            case ty.BoolType():
                return Message(bool=Message())
            case ty.TupleType(elements):
                return Message(tuple=Message(members=[self.spec(each) for each in elements]))
            case ty.StackType(element, size):
                kind = "header" if isinstance(element, ty.HeaderType) else "header_union"
                self.mention(element)
                stack = Message(**{kind: Message(name=control_type_name(element))})
                stack.set("size", size)
                return Message(**{f"{kind}_stack": stack})
            case ty.ErrorType():
                self.mention(type_)
                return Message(error=Message())
            case _:
                return Message(**{self.mention(type_): Message(name=control_type_name(type_))})

    def mention(self, type_: Type) -> str:
        """Adds a type and its parts. Returns the type's field in P4DataTypeSpec, empty if unnamed."""
        name = control_type_name(type_)
        match type_:
            case ty.StructType():
                return self._add("struct", name, lambda: self._members(type_.fields))
            case ty.HeaderType():
                return self._add("header", name, lambda: self._header(type_))
            case ty.UnionType():
                return self._add("header_union", name, lambda: self._union(type_))
            case ty.EnumType():
                members = [Message(name=each) for each in type_.members]
                return self._add("enum", name, lambda: Message(members=members))
            case ty.SerEnumType():
                return self._add("serializable_enum", name, lambda: _ser_enum(type_))
            case ty.NewType():
                return self._add("new_type", name, lambda: self._new_type(type_))
            case ty.ErrorType():
                self._error = Message(members=list(self._errors))
                return "error"
            case _:
                return ""

    def _add(self, field: str, name: str, make: Callable[[], Message]) -> str:
        there = self._tables.setdefault(f"{field}s", {})
        if name not in there:
            there[name] = Message()
            there[name] = make()
        return field

    def _members(self, fields: Sequence[ty.Field]) -> Message:
        names = (own_name(each.name, each.annotations) for each in fields)
        pairs = zip(names, fields, strict=True)
        return Message(members=[Message(name=name, type_spec=self.spec(each.type)) for name, each in pairs])

    def _header(self, type_: ty.HeaderType) -> Message:
        members = [Message(name=name, type_spec=_bitstring_of(each)) for name, each in flatten(type_)]
        return Message(members=members)

    def _union(self, type_: ty.UnionType) -> Message:
        members = []
        for each in type_.fields:
            self.mention(each.type)
            header = Message(name=control_type_name(each.type))
            members.append(Message(name=own_name(each.name, each.annotations), header=header))
        return Message(members=members)

    def _new_type(self, type_: ty.NewType) -> Message:
        translated = translation(type_)
        if translated is None:
            message = Message(original_type=self.spec(underlying(type_)))
        else:
            uri, width = translated
            text = Message() if width is None else None
            message = Message(translated_type=Message(uri=uri, sdn_string=text, sdn_bitwidth=width))
        message.update(annotation_fields(type_.annotations, ("p4runtime_translation",)))
        return message


def flatten(type_: ty.HeaderType) -> list[tuple[str, ty.Field]]:
    """A header's fields, those of structs in it with the path to them as their name."""
    flat: list[tuple[str, ty.Field]] = []
    nested = any(isinstance(each.type, ty.StructType) for each in type_.fields)

    def visit(fields: Sequence[ty.Field], path: str) -> None:
        for each in fields:
            if isinstance(each.type, ty.StructType):
                visit(each.type.fields, f"{path}{each.name}.")
            else:
                flat.append((f"{path}{each.name}" if nested else own_name(each.name, each.annotations), each))

    visit(type_.fields, "")
    return flat


def _bitstring_of(field: ty.Field) -> Message:
    type_ = underlying(field.type)
    if isinstance(type_, ty.BoolType):
        type_ = ty.BitType(1)
    if not isinstance(type_, ty.BitType | ty.IntType | ty.VarbitType):
        raise unsupported(f"a header's field of type `{field.type}` in P4Info", field.location)
    return _bitstring(type_)


def _bitstring(type_: ty.BitType | ty.IntType | ty.VarbitType) -> Message:
    if isinstance(type_, ty.VarbitType):
        return Message(varbit=Message(max_bitwidth=type_.width))
    return Message(**{"int" if isinstance(type_, ty.IntType) else "bit": Message(bitwidth=type_.width)})


def _ser_enum(type_: ty.SerEnumType) -> Message:
    size = (type_.underlying.width + 7) // 8
    members = []
    for name, value in type_.members.items():
        bits = value & ((1 << type_.underlying.width) - 1)
        members.append(Message(name=name, value=bits.to_bytes(size, "big")))
    return Message(underlying_type=Message(bitwidth=type_.underlying.width), members=members)
