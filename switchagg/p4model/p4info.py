"""P4Info (P4Runtime 1.4): the control plane's view of a program, as p4c gives it.

    program ─ collect names ─ ids and aliases ─ one message for each object ─► P4Info: text or JSON

Like p4c, it contains what is used: tables that are applied, and actions that a table lists or a body calls.
Extern objects are always there. For a Tofino it is the output of p4c with --p4runtime-force-std-externs: ids
and aliases of tables and extern objects are made of names that begin with the pipeline's; names are not.

An id has the kind of the object in its highest byte and, below it, a hash of the full name (Jenkins's
one-at-a-time) or the number from @id. Of two names with one hash, the later in the alphabet takes the next
free number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum

from switchagg.p4model import ir, walk
from switchagg.p4model import types as ty
from switchagg.p4model.ast import Annotation, control_name, find_annotation, own_name
from switchagg.p4model.constants import to_value
from switchagg.p4model.errors import NOWHERE, P4Error
from switchagg.p4model.p4info_types import (
    TypeInfo,
    annotation_fields,
    control_type_name,
    controller_width,
    documentation,
    flatten,
    type_name,
)
from switchagg.p4model.protobuf_text import Enum, Long, Message
from switchagg.p4model.types import Type, underlying, width_of

DEFAULT_TABLE_SIZE = 1024

_MATCH_TYPES = ("exact", "lpm", "ternary", "range", "optional")


class Kind(IntEnum):
    """The highest byte of an id (P4Runtime specification, "P4Info: ID allocation")."""

    ACTION = 0x01
    TABLE = 0x02
    VALUE_SET = 0x03
    CONTROLLER_HEADER = 0x04
    ACTION_PROFILE = 0x11
    COUNTER = 0x12
    DIRECT_COUNTER = 0x13
    METER = 0x14
    DIRECT_METER = 0x15
    REGISTER = 0x16
    DIGEST = 0x17


_EXTERN_KINDS = {
    "counter": Kind.COUNTER, "direct_counter": Kind.DIRECT_COUNTER, "meter": Kind.METER,
    "direct_meter": Kind.DIRECT_METER, "register": Kind.REGISTER, "action_profile": Kind.ACTION_PROFILE,
    "action_selector": Kind.ACTION_PROFILE,
    "Counter": Kind.COUNTER, "DirectCounter": Kind.DIRECT_COUNTER, "Meter": Kind.METER,
    "DirectMeter": Kind.DIRECT_METER, "Register": Kind.REGISTER, "ActionProfile": Kind.ACTION_PROFILE,
    "ActionSelector": Kind.ACTION_PROFILE, "Digest": Kind.DIGEST,
}  # fmt: skip
"""By the names of extern types, of v1model and of TNA."""


def generate(program: ir.Program) -> Message:
    """The P4Info message of a program. Raises `P4Error` for what P4Info cannot express."""
    try:
        return _Generator(program).run()
    except P4Error as error:
        raise error.with_sources(program.sources) from None


class _Generator:
    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.symbols = Symbols()
        self.types = TypeInfo(program.errors)
        self.tables: list[ir.Table] = []
        self.actions: list[ir.Action] = []
        self.listed: set[ir.Action] = set()
        """Actions that entries can name. Others are called with arguments, and show no parameters."""
        self.digests: dict[str, Type] = {}
        self.value_sets: list[ir.ValueSet] = []
        self.instances: list[ir.ExternInstance] = list(program.instances)
        self.pipelines: dict[int, str] = {}
        """On a Tofino: the name of the pipeline that contains an object, by the identity of the object."""
        self.called: set[int] = set()
        """The identities of extern objects with a method that is called."""
        self.no_action = next((each for each in program.actions if each.name == "NoAction"), None)

    def run(self) -> Message:
        self._collect()
        message = Message(
            pkg_info=self._package_info(),
            tables=[self._table(each) for each in self.tables],
            actions=[self._action(each) for each in self.actions if not _hidden(each.annotations)],
            action_profiles=[self._profile(each) for each in self._of(Kind.ACTION_PROFILE)],
            counters=list(self._counters(Kind.COUNTER)),
            direct_counters=list(self._direct(Kind.DIRECT_COUNTER)),
            meters=list(self._counters(Kind.METER)),
            direct_meters=list(self._direct(Kind.DIRECT_METER)),
            controller_packet_metadata=[self._controller(each) for each in self._controller_headers()],
            value_sets=[self._value_set(each) for each in self.value_sets],
            registers=[self._register(each) for each in self._of(Kind.REGISTER)],
            digests=list(self._digests()),
        )
        info = self.types.message()
        message.set("type_info", info if info.fields else None)
        return message

    # ---- collecting

    def _collect(self) -> None:
        if self.program.architecture == "tna":
            self._name_pipelines()
        for block in walk.blocks(self.program.main):
            self.instances += [each for each in block.instances if isinstance(each, ir.ExternInstance)]
            if isinstance(block, ir.ParserInstance):
                self.value_sets += block.value_sets
            else:
                self._collect_control(block)
        self._check_distinct()
        symbols = self.symbols
        for action in self.actions:
            symbols.add(Kind.ACTION, action.control_name, action.annotations)
        for table in self.tables:
            symbols.add(Kind.TABLE, self._full_name(table), table.annotations)
        for value_set in self.value_sets:
            symbols.add(Kind.VALUE_SET, self._full_name(value_set), value_set.annotations)
        for instance in self.instances:
            kind = _kind(instance)
            if kind is not None:
                symbols.add(kind, self._full_name(instance), instance.annotations)
        for header in self._controller_headers():
            symbols.add(Kind.CONTROLLER_HEADER, control_type_name(header), header.annotations)
        for name in self.digests:
            symbols.add(Kind.DIGEST, name)
        symbols.assign()

    def _name_pipelines(self) -> None:
        for param, pipeline in self.program.main.args.items():
            if isinstance(pipeline, ir.PackageInstance):
                name = control_name(pipeline.name or param, pipeline.annotations, "")
                for block in walk.blocks(pipeline):
                    parts = block.tables if isinstance(block, ir.ControlInstance) else block.value_sets
                    for each in (*block.instances, *parts):
                        self.pipelines.setdefault(id(each), name)

    def _full_name(self, thing: ir.Declaration) -> str:
        """The name that ids and aliases are made of."""
        pipeline = self.pipelines.get(id(thing))
        return thing.control_name if pipeline is None else f"{pipeline}.{thing.control_name}"

    def _id(self, kind: Kind, thing: ir.Declaration) -> int:
        return self.symbols.id(kind, self._full_name(thing))

    def _collect_control(self, control: ir.ControlInstance) -> None:
        found = walk.used(control)
        self.tables += [
            each for each in control.tables if each in found.tables and not _hidden(each.annotations)
        ]
        actions = [each for each in found.actions if each in found.direct]
        for table in found.tables:
            self.listed.update(ref.action for ref in table.actions)
        if any(table.default is None for table in found.tables) and self.no_action is not None:
            actions.append(self.no_action)
        for action in actions:
            if all(each.control_name != action.control_name for each in self.actions):
                self.actions.append(action)
        bodies = (control.body, *(each.body for each in found.actions))
        for node in walk.nodes(*bodies):
            if isinstance(node, ir.ExternCall) and node.method.name == "digest" and node.type_args:
                type_ = node.type_args[0]
                name = control_type_name(type_) if _is_named(type_) else f"digest_{len(self.digests)}"
                self.digests.setdefault(name, type_)
            elif isinstance(node, ir.MethodCall):
                self.called.add(id(node.target))

    def _check_distinct(self) -> None:
        seen: dict[str, ir.Table] = {}
        for table in self.tables:
            if table.control_name in seen:
                raise P4Error(
                    f"two tables have the name `{table.control_name}`",
                    table.location,
                    ("the other one is declared here", seen[table.control_name].location),
                )
            seen[table.control_name] = table

    def _of(self, kind: Kind) -> Iterator[ir.ExternInstance]:
        return (each for each in self.instances if _kind(each) is kind)

    def _controller_headers(self) -> Iterator[ty.HeaderType]:
        for type_ in self.program.types.values():
            if not isinstance(type_, ty.HeaderType) or _hidden(type_.annotations):
                continue
            if find_annotation(type_.annotations, "controller_header") is not None:
                yield type_

    # ---- messages

    def _preamble(self, kind: Kind, thing: ir.Declaration, skipped: Iterable[str] = ()) -> Message:
        return Message(
            id=self._id(kind, thing),
            name=thing.control_name,
            alias=self.symbols.alias(self._full_name(thing)),
            **annotation_fields(thing.annotations, skipped),
            doc=documentation(thing.annotations),
        )

    def _package_info(self) -> Message:
        main = self.program.main
        info = Message(arch=self.program.architecture)
        for note in main.annotations:
            if note.name == "pkginfo":
                for key, value in note.pairs:
                    info.set(key, value)
            elif note.name == "platform_property":
                info.set("platform_properties", Message(**dict(note.pairs)))
        others = [note for note in main.annotations if note.name not in ("pkginfo", "platform_property")]
        info.update(annotation_fields(others))
        info.set("doc", documentation(main.annotations))
        return info

    def _field(
        self,
        number: int,
        name: str,
        annotations: Iterable[Annotation],
        type_: Type,
        match_kind: str = "",
        *,
        skipped: Iterable[str] = (),
        documented: bool = True,
    ) -> Message:
        """A parameter, match field, or field of a packet header."""
        self.types.mention(type_)
        message = Message(
            id=number, name=name, **annotation_fields(annotations, skipped), bitwidth=controller_width(type_)
        )
        if match_kind in _MATCH_TYPES:
            message.set("match_type", Enum(match_kind.upper()))
        else:
            message.set("other_match_type", match_kind)
        message.set("doc", documentation(annotations) if documented else None)
        message.set("type_name", type_name(type_))
        return message

    def _action(self, action: ir.Action) -> Message:
        data = [each for each in action.params if not each.direction and action in self.listed]
        params = []
        for number, param in zip(field_ids([each.annotations for each in data]), data, strict=True):
            name = own_name(param.name, param.annotations)
            message = self._field(number, name, param.annotations, param.type)
            if isinstance(param.type, ty.EnumType):
                message.set("type_name", Message(name=control_type_name(param.type)))
            params.append(message)
        return Message(preamble=self._preamble(Kind.ACTION, action), params=params)

    def _table(self, table: ir.Table) -> Message:
        const_default = table.default.action if table.default is not None and table.const_default else None
        timeout = any(table.properties.get(name) is True for name in ("support_timeout", "idle_timeout"))
        return Message(
            preamble=self._preamble(Kind.TABLE, table),
            match_fields=list(self._match_fields(table)),
            action_refs=list(self._action_refs(table)),
            const_default_action_id=None if const_default is None else self._id(Kind.ACTION, const_default),
            initial_default_action=self._initial_default(table),
            implementation_id=next(self._property_ids(table, Kind.ACTION_PROFILE), None),
            direct_resource_ids=list(self._property_ids(table, Kind.DIRECT_COUNTER, Kind.DIRECT_METER)),
            size=Long(table.size or DEFAULT_TABLE_SIZE),
            idle_timeout_behavior=Enum("NOTIFY_CONTROL") if timeout else None,
            is_const_table=table.const_entries,
            has_initial_entries=bool(table.entries),
        )

    def _match_fields(self, table: ir.Table) -> Iterator[Message]:
        numbers = field_ids([each.annotations for each in table.keys])
        for number, key in zip(numbers, table.keys, strict=True):
            if key.match_kind not in ("selector", "dleft_hash"):
                yield self._field(number, key.control_name, key.annotations, key.expr.type, key.match_kind)

    def _action_refs(self, table: ir.Table) -> Iterator[Message]:
        for ref in table.actions:
            message = Message(id=self._id(Kind.ACTION, ref.action))
            table_only = find_annotation(ref.annotations, "tableonly") is not None
            default_only = find_annotation(ref.annotations, "defaultonly") is not None
            if table_only and default_only:
                raise P4Error("an action cannot be both @tableonly and @defaultonly", ref.location)
            if table_only or default_only:
                message.set("scope", Enum("TABLE_ONLY" if table_only else "DEFAULT_ONLY"))
            message.update(annotation_fields(ref.annotations))
            yield message
        if table.default is None and self._lacks_no_action(table):
            number = self.symbols.id(Kind.ACTION, "NoAction")
            yield Message(id=number, annotations=["@defaultonly"], scope=Enum("DEFAULT_ONLY"))

    def _lacks_no_action(self, table: ir.Table) -> bool:
        return self.no_action is not None and all(ref.action is not self.no_action for ref in table.actions)

    def _initial_default(self, table: ir.Table) -> Message | None:
        if table.default is None:
            if self.no_action is None:
                return None
            return Message(action_id=self._id(Kind.ACTION, self.no_action))
        data = [each for each in table.default.args if not each.param.direction]
        numbers = field_ids([each.param.annotations for each in data])
        arguments = [
            Message(param_id=number, value=_bytes(each)) for number, each in zip(numbers, data, strict=True)
        ]
        return Message(action_id=self._id(Kind.ACTION, table.default.action), arguments=arguments)

    def _property_ids(self, table: ir.Table, *kinds: Kind) -> Iterator[int]:
        for kind in kinds:
            instance = _property(table, kind)
            if instance is not None:
                yield self._id(kind, instance)

    # ---- extern objects

    def _counters(self, kind: Kind) -> Iterator[Message]:
        for instance in self._of(kind):
            message = self._counter_head(instance, kind)
            message.set("size", Long(_size(instance)))
            message.set("index_type_name", self._index_type(instance, kind))
            yield message

    def _counter_head(self, instance: ir.ExternInstance, kind: Kind) -> Message:
        enumerator = instance.args.get("type")
        assert isinstance(enumerator, ir.EnumLiteral)
        unit = enumerator.name.upper()
        spec = Message(unit=Enum("BOTH" if unit == "PACKETS_AND_BYTES" else unit))
        return Message(preamble=self._preamble(kind, instance), spec=spec)

    def _index_type(self, instance: ir.ExternInstance, kind: Kind) -> Message | None:
        args = instance.type.type_args
        after_width = kind is Kind.COUNTER and self.program.architecture == "tna"
        position = 1 if kind is Kind.REGISTER or after_width else 0
        if position >= len(args):
            return None
        self.types.mention(args[position])
        return type_name(args[position])

    def _direct(self, kind: Kind) -> Iterator[Message]:
        for table in self.tables:
            instance = _property(table, kind)
            if instance is not None:
                message = self._counter_head(instance, kind)
                message.set("direct_table_id", self._id(Kind.TABLE, table))
                yield message

    def _register(self, instance: ir.ExternInstance) -> Message:
        return Message(
            preamble=self._preamble(Kind.REGISTER, instance),
            type_spec=self.types.spec(instance.type.type_args[0]),
            size=_size(instance),
            index_type_name=self._index_type(instance, Kind.REGISTER),
        )

    def _profile(self, instance: ir.ExternInstance) -> Message:
        selector = instance.type.name in ("action_selector", "ActionSelector")
        size = instance.args.get("size")
        tables = sorted(
            self._full_name(each) for each in self.tables if _property(each, Kind.ACTION_PROFILE) is instance
        )
        notes = instance.annotations
        skipped = ("max_group_size", "selector_size_semantics", "max_member_weight")
        group = find_annotation(notes, "max_group_size")
        message = Message(
            preamble=self._preamble(Kind.ACTION_PROFILE, instance, skipped),
            table_ids=[self.symbols.id(Kind.TABLE, each) for each in tables],
            with_selector=selector,
            size=Long(size) if isinstance(size, int) else None,
        )
        if group is not None and selector:
            message.set("max_group_size", single_number(group))
        semantics = find_annotation(notes, "selector_size_semantics")
        if semantics is not None and selector:
            _set_semantics(message, semantics, notes)
        return message

    def _digests(self) -> Iterator[Message]:
        for name, type_ in self.digests.items():
            number, alias = self.symbols.id(Kind.DIGEST, name), self.symbols.alias(name)
            yield Message(
                preamble=Message(id=number, name=name, alias=alias), type_spec=self.types.spec(type_)
            )
        for each in self._of(Kind.DIGEST):
            if id(each) in self.called:
                spec = self.types.spec(each.type.type_args[0])
                yield Message(preamble=self._preamble(Kind.DIGEST, each), type_spec=spec)

    # ---- packet metadata and value sets

    def _controller(self, header: ty.HeaderType) -> Message:
        note = find_annotation(header.annotations, "controller_header")
        assert note is not None
        if len(note.values) != 1 or not isinstance(note.values[0], str):
            raise P4Error("@controller_header takes one string", note.location)
        name = note.values[0]
        fields = flatten(header)
        metadata = []
        numbers = field_ids([field.annotations for _, field in fields])
        for number, (field_name, field) in zip(numbers, fields, strict=True):
            if _hidden(field.annotations):
                continue
            metadata.append(self._field(number, field_name, field.annotations, field.type, documented=False))
        preamble = Message(
            id=self.symbols.id(Kind.CONTROLLER_HEADER, control_type_name(header)),
            name=name,
            alias=name,
            **annotation_fields(header.annotations),
            doc=documentation(header.annotations),
        )
        return Message(preamble=preamble, metadata=metadata)

    def _value_set(self, value_set: ir.ValueSet) -> Message:
        preamble = self._preamble(Kind.VALUE_SET, value_set)
        if id(value_set) in self.pipelines:
            preamble.set("alias", self._full_name(value_set))
        return Message(preamble=preamble, match=list(self._members(value_set)), size=value_set.size)

    def _members(self, value_set: ir.ValueSet) -> Iterator[Message]:
        element = value_set.element
        if isinstance(element, ty.StructType):
            numbers = field_ids([each.annotations for each in element.fields])
            for number, field in zip(numbers, element.fields, strict=True):
                if not isinstance(field.type, ty.BitType):
                    reason = f"field `{field.name}` of a value set must be bit<N> in P4Info"
                    raise P4Error(reason, field.location)
                notes = field.annotations
                note = find_annotation(notes, "match")
                kind = note.body.strip() if note is not None and note.body else "exact"
                name = own_name(field.name, notes)
                yield self._field(number, name, notes, field.type, kind, skipped=("match",), documented=False)
        elif isinstance(element, ty.SerEnumType):
            width = element.underlying.width
            for number, name in enumerate(element.members, 1):
                yield Message(id=number, name=name, bitwidth=width, match_type=Enum("EXACT"))
        elif isinstance(underlying(element), ty.BitType):
            yield Message(id=1, bitwidth=width_of(element), match_type=Enum("EXACT"))
        else:
            raise P4Error(f"a value set of `{element}` has no P4Info", value_set.location)


def _kind(instance: ir.ExternInstance) -> Kind | None:
    return _EXTERN_KINDS.get(instance.type.name)


def _property(table: ir.Table, kind: Kind) -> ir.ExternInstance | None:
    """The extern object of this kind that a property of the table names."""
    named = (each for each in table.properties.values() if isinstance(each, ir.ExternInstance))
    return next((each for each in named if _kind(each) is kind), None)


def _size(instance: ir.ExternInstance) -> int:
    size = instance.args.get("size")
    assert isinstance(size, int)
    return size


def _hidden(annotations: Iterable[Annotation]) -> bool:
    return find_annotation(annotations, "hidden") is not None


def _is_named(type_: Type) -> bool:
    return isinstance(type_, ty.StructType | ty.HeaderType) and bool(type_.name)


def _bytes(argument: ir.Argument) -> bytes:
    """The value of a default action's argument, with leading zeros to its width."""
    assert argument.value is not None
    value = to_value(argument.value)
    if isinstance(value, ir.EnumLiteral):
        value = value.value
    assert isinstance(value, int)
    width = controller_width(argument.param.type)
    return (int(value) & ((1 << width) - 1)).to_bytes((width + 7) // 8, "big")


def _set_semantics(message: Message, note: Annotation, notes: Iterable[Annotation]) -> None:
    text = str(note.values[0]).upper() if note.values else ""
    inner = Message()
    weight = find_annotation(notes, "max_member_weight")
    if text == "SUM_OF_MEMBERS" and weight is not None:
        inner.set("max_member_weight", single_number(weight))
    if text not in ("SUM_OF_MEMBERS", "SUM_OF_WEIGHTS"):
        raise P4Error('@selector_size_semantics is "sum_of_weights" or "sum_of_members"', note.location)
    message.set(text.lower(), inner)


def hash_name(name: str) -> int:
    """Jenkins's one-at-a-time hash, 32 bits."""
    value = 0
    for byte in name.encode():
        value = (value + byte) & 0xFFFFFFFF
        value = (value + (value << 10)) & 0xFFFFFFFF
        value ^= value >> 6
    value = (value + (value << 3)) & 0xFFFFFFFF
    value ^= value >> 11
    return (value + (value << 15)) & 0xFFFFFFFF


class Symbols:
    """Ids and aliases of all objects. All names are added first, since aliases depend on all of them."""

    def __init__(self) -> None:
        self._ids: dict[tuple[Kind, str], int | None] = {}
        self._taken: set[int] = set()
        self._suffixes: Counter[str] = Counter()
        self._names: set[str] = set()

    def add(self, kind: Kind, name: str, annotations: Iterable[Annotation] = ()) -> None:
        """Adds an object; one that is there already is not added again."""
        if (kind, name) in self._ids:
            return
        self._ids[kind, name] = self._written(kind, annotations)
        if name not in self._names:
            self._names.add(name)
            parts = name.split(".")
            self._suffixes.update(".".join(parts[index:]) for index in range(len(parts)))

    def _written(self, kind: Kind, annotations: Iterable[Annotation]) -> int | None:
        note = find_annotation(annotations, "id")
        if note is None:
            return None
        number = single_number(note)
        if number >> 24 not in (0, kind):
            raise P4Error(
                f"@id({number:#x}) is of another kind of object: it should be {kind:#04x}......",
                note.location,
            )
        number |= kind << 24
        if number in self._taken:
            raise P4Error(f"@id({number:#x}) is given twice", note.location)
        self._taken.add(number)
        return number

    def assign(self) -> None:
        """Gives ids to all objects that the program gives none."""
        for kind in sorted({kind for kind, _ in self._ids}):
            for name in sorted(name for each, name in self._ids if each == kind):
                if self._ids[kind, name] is None:
                    self._ids[kind, name] = self._probe(kind, hash_name(name))

    def _probe(self, kind: Kind, value: int) -> int:
        for step in range(1 << 24):
            number = kind << 24 | (value + step) & 0xFFFFFF
            if number not in self._taken:
                self._taken.add(number)
                return number
        raise P4Error("there are more objects than ids", NOWHERE)

    def id(self, kind: Kind, name: str) -> int:
        """The id of an object, after `assign`."""
        number = self._ids[kind, name]
        assert number is not None
        return number

    def alias(self, name: str) -> str:
        """The shortest end of the name that no other name has."""
        parts = name.split(".")
        for count in range(1, len(parts)):
            suffix = ".".join(parts[-count:])
            if self._suffixes[suffix] < 2:
                return suffix
        return name


def field_ids(fields: Sequence[Iterable[Annotation]]) -> list[int]:
    """Ids of match fields, parameters and the like: @id, or the position, counted from 1."""
    written: list[int | None] = []
    for field in fields:
        note = find_annotation(field, "id")
        written.append(None if note is None else single_number(note))
        if note is not None and written.count(written[-1]) > 1:
            raise P4Error(f"@id({written[-1]}) is given twice", note.location)
    taken = {each for each in written if each is not None}
    ids, index = [], 1
    for number in written:
        if number is not None:
            ids.append(number)
            index += 1
            continue
        while index in taken:
            index += 1
        taken.add(index)
        ids.append(index)
    return ids


def single_number(note: Annotation) -> int:
    """The value of an annotation that takes one number, which is not negative."""
    if len(note.values) != 1 or not isinstance(note.values[0], int) or note.values[0] < 0:
        raise P4Error(f"@{note.name} takes one number", note.location)
    return note.values[0]
