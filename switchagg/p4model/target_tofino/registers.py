"""Rules on registers: one access for a packet, and no more actions than a stateful ALU has programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from switchagg.p4model import ir, walk
from switchagg.p4model.target_tofino import limits
from switchagg.p4model.target_tofino.findings import Finding
from switchagg.p4model.target_tofino.flow import Flow, Unit, register_of


def check(flow: Flow, instances: Sequence[ir.ExternInstance]) -> Iterator[Finding]:
    """What a control does with registers that a Tofino cannot do."""
    yield from _once(flow.units)
    yield from _once_in_an_action(flow.units)
    yield from _actions(instances)


def _once(units: Sequence[Unit]) -> Iterator[Finding]:
    for index, unit in enumerate(units):
        for register, location in unit.registers.items():
            for earlier in units[:index]:
                if unit.follows_access(earlier, register):
                    yield Finding(
                        f"register `{register.name}` is accessed twice for one packet; a Tofino can access a "
                        "register once",
                        location,
                        (("the access before it is here", earlier.registers[register]),),
                    )
                    break


def _once_in_an_action(units: Sequence[Unit]) -> Iterator[Finding]:
    seen: set[ir.Action] = set()
    for unit in units:
        if unit.table is None:
            continue
        for ref in unit.table.actions:
            if ref.action in seen:
                continue
            seen.add(ref.action)
            first: dict[ir.ExternInstance, ir.MethodCall] = {}
            for call in _calls(ref.action):
                assert isinstance(call.target, ir.ExternInstance)
                register = register_of(call.target)
                if register is None:
                    continue
                if register in first:
                    yield Finding(
                        f"action `{ref.action.name}` accesses register `{register.name}` twice",
                        call.location,
                        (("the access before it is here", first[register].location),),
                    )
                first.setdefault(register, call)


def _calls(action: ir.Action) -> Iterator[ir.MethodCall]:
    for node in walk.nodes(action.body):
        if isinstance(node, ir.MethodCall) and isinstance(node.target, ir.ExternInstance):
            yield node
        elif isinstance(node, ir.DirectActionCall):
            yield from _calls(node.action)


def _actions(instances: Iterable[ir.ExternInstance]) -> Iterator[Finding]:
    programs: dict[ir.ExternInstance, list[ir.ExternInstance]] = {}
    for instance in instances:
        register = register_of(instance)
        if register is not None and register is not instance:
            programs.setdefault(register, []).append(instance)
    for register, actions in programs.items():
        if len(actions) > limits.REGISTER_ACTIONS:
            extra = actions[limits.REGISTER_ACTIONS]
            yield Finding(
                f"register `{register.name}` has {len(actions)} actions; a stateful ALU has "
                f"{limits.REGISTER_ACTIONS} programs",
                extra.location,
                (("the register is declared here", register.location),),
            )
