"""Random messages of every kind: each is done or refused, never an exception of Python's."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from switchagg.p4runtime.program_source import source_of
from switchagg.p4runtime.protos import p4runtime_pb2
from switchagg.p4runtime.server.entities import Entities
from switchagg.p4runtime.server.errors import Code, StatusError
from switchagg.p4runtime.server.model_device import ModelDevice
from tests.seeds import seed_of_this_run
from tests.switchagg.p4runtime.server.programs import EVERYTHING

_BYTES = (b"", b"\0", b"\1", b"\2", b"\0\0\x05", b"\xff", b"\x02\0", b"\x02\0\0\0\0\1", b"\xff" * 7)
_NUMBERS = (0, 0, 1, 1, 2, 3, 5, 7, 511, 512, 2**31 - 1)


def _filled(dice: random.Random, message: Any, ids: list[int], depth: int = 0) -> Any:
    """A message with random fields; one of each oneof, and ids of the program where it is about ids."""
    oneofs = [list(each.fields) for each in message.DESCRIPTOR.oneofs]
    single = [each for each in message.DESCRIPTOR.fields if each.containing_oneof is None]
    chosen = [each for each in single if dice.random() < (0.6 if depth < 6 else 0.1)]
    chosen += [dice.choice(fields) for fields in oneofs if dice.random() < 0.9]
    for field in chosen:
        repeated = field.is_repeated
        if field.message_type is not None:
            if field.message_type.full_name == "google.protobuf.Any":
                continue
            for _ in range(dice.randrange(3) if repeated else 1):
                inner = getattr(message, field.name)
                _filled(dice, inner.add() if repeated else inner, ids, depth + 1)
                if not repeated:
                    inner.SetInParent()
            continue
        value = _value(dice, field, ids)
        if value is None:
            continue
        if repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def _value(dice: random.Random, field: Any, ids: list[int]) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return dice.random() < 0.1
        case FieldDescriptor.CPPTYPE_STRING:
            return dice.choice(_BYTES) if field.type == FieldDescriptor.TYPE_BYTES else "x"
        case FieldDescriptor.CPPTYPE_ENUM:
            return dice.choice([each.number for each in field.enum_type.values])
        case FieldDescriptor.CPPTYPE_UINT32 if field.name.endswith("_id") and dice.random() < 0.8:
            return dice.choice(ids) if field.name not in ("field_id", "param_id", "member_id") else 1
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64 if dice.random() < 0.1:
            return -1
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return 0.5
        case _:
            return dice.choice(_NUMBERS)


def _refusal(entities: Entities, entity: Any, change: int | None) -> StatusError | None:
    try:
        if change is not None:
            entities.write(p4runtime_pb2.Update(type=change, entity=entity))
        else:
            for each in entities.read(entity):
                each.SerializeToString()
    except StatusError as refused:
        return refused
    return None


def test_random_updates_and_reads(tmp_path: Path) -> None:
    dice = random.Random(seed_of_this_run())
    path = tmp_path / "everything.p4"
    path.write_text(EVERYTHING)
    device = ModelDevice(source_of(path))
    assert device.running is not None
    info, entities = device.running.source.p4info, device.running.entities
    kinds = {
        "table_entry": info.tables,
        "action_profile_member": info.action_profiles,
        "action_profile_group": info.action_profiles,
        "meter_entry": info.meters,
        "direct_meter_entry": info.tables,
        "counter_entry": info.counters,
        "direct_counter_entry": info.tables,
        "packet_replication_engine_entry": (),
        "value_set_entry": info.value_sets,
        "register_entry": info.registers,
        "digest_entry": info.digests,
        "extern_entry": (),
    }
    actions = [each.preamble.id for each in info.actions]
    results: Counter[str] = Counter()
    for number in range(12_000):
        name = dice.choice(list(kinds))
        ids = [each.preamble.id for each in kinds[name]] * 3 + actions + [0, 1, 2]
        entity = p4runtime_pb2.Entity()
        _filled(dice, getattr(entity, name), ids)
        getattr(entity, name).SetInParent()
        refused = _refusal(entities, entity, dice.randrange(4) if number % 4 else None)
        results[f"done: {name}" if refused is None else refused.code.name] += 1
        assert refused is None or (str(refused) and refused.code is not Code.INTERNAL)
        if number % 10 == 0:
            frame = dice.randbytes(dice.randrange(1, 80))
            device.process(dice.choice((1, 2, 510)), frame, number / 100)
    print(results)
    for name in kinds.keys() - {"register_entry", "extern_entry"}:
        assert results[f"done: {name}"], f"no {name} was done at all"
    # Everything there can be read, and written again as it was read.
    for each in list(entities.read(p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry()))):
        if not each.table_entry.is_const:
            entities.write(p4runtime_pb2.Update(type=2, entity=each))
