"""The pipelines of a TNA program: their blocks translated, and what each parameter of a block is.

A program may leave out parameters that it does not use, so they are told apart by their types: the first two
that are none of the architecture's are the headers and the user's metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from switchagg.p4model import ir
from switchagg.p4model.errors import unsupported
from switchagg.p4model.runtime.analysis import walk
from switchagg.p4model.runtime.blocks import block
from switchagg.p4model.runtime.emit import Module
from switchagg.p4model.types import FieldsType

# Types of parameters that the architecture fills in; the first two others are headers and user metadata.
_ROLES: Final = {
    "packet_in": "packet",
    "packet_out": "out",
    "ingress_intrinsic_metadata_t": "intrinsic",
    "ingress_intrinsic_metadata_for_tm_t": "manager",
    "ingress_intrinsic_metadata_from_parser_t": "parser",
    "ingress_intrinsic_metadata_for_deparser_t": "deparser",
    "egress_intrinsic_metadata_t": "intrinsic",
    "egress_intrinsic_metadata_from_parser_t": "parser",
    "egress_intrinsic_metadata_for_deparser_t": "deparser",
    "egress_intrinsic_metadata_for_output_port_t": "output",
}


@dataclass(slots=True)
class Stage:
    """A parser, control or deparser: its function, and what each of its parameters is."""

    run: Callable[..., Any]
    roles: tuple[str, ...]


@dataclass(slots=True)
class Gress:
    """One half of a pipeline. `classes` makes the objects that the roles name."""

    parsers: list[Stage | None]
    control: Stage
    deparser: Stage
    classes: dict[str, Callable[[], Any]]
    reads_errors: bool


@dataclass(slots=True)
class Pipe:
    """A pipeline."""

    ingress: Gress
    egress: Gress


def pipeline(module: Module, package: ir.PackageInstance) -> Callable[[Module], Pipe]:
    """Translates a pipeline; what makes it of the compiled module."""
    args = list(package.args.values())
    if len(args) != 6:
        raise unsupported(f"the package {package.type}", package.location)
    halves = []
    for side, (parsers, control, deparser) in (("ingress", args[:3]), ("egress", args[3:])):
        listed = list(parsers.args.values()) if isinstance(parsers, ir.PackageInstance) else [parsers]
        if not isinstance(control, ir.ControlInstance) or not isinstance(deparser, ir.ControlInstance):
            raise unsupported(f"the package {package.type}", package.location)
        halves.append(_half(module, side, listed, control, deparser))
    return lambda made: Pipe(halves[0](made), halves[1](made))


def _half(
    module: Module,
    side: str,
    parsers: Sequence[ir.Value],
    control: ir.ControlInstance,
    deparser: ir.ControlInstance,
) -> Callable[[Module], Gress]:
    names: list[tuple[str, tuple[str, ...]] | None] = []
    classes: dict[str, FieldsType] = {}
    for each in [*parsers, control, deparser]:
        if isinstance(each, ir.ParserInstance | ir.ControlInstance):
            names.append((block(module, each), _roles(each, classes)))
        else:
            names.append(None)
    # The architecture has these also where the program leaves the parameter out.
    for type_name, role in _ROLES.items():
        found = module.program.types.get(type_name)
        if role not in classes and isinstance(found, FieldsType) and type_name.startswith(side):
            classes[role] = found
    for type_ in classes.values():
        module.layouts.name(type_)
    reads = any(
        isinstance(node, ir.FieldAccess) and node.name == "parser_err" for node in _everything(control)
    )

    def finish(made: Module) -> Gress:
        stages = [None if each is None else Stage(made.namespace[each[0]], each[1]) for each in names]
        assert stages[-2] is not None
        assert stages[-1] is not None
        return Gress(
            stages[:-2],
            stages[-2],
            stages[-1],
            {role: made.layouts.cls(type_) for role, type_ in classes.items()},
            reads,
        )

    return finish


def _everything(control: ir.ControlInstance) -> list[object]:
    nodes = list(walk(control.body))
    for action in control.actions:
        nodes += walk(action.body)
    for table in control.tables:
        for key in table.keys:
            nodes += walk(key.expr)
    for inner in control.instances:
        if isinstance(inner, ir.ControlInstance):
            nodes += _everything(inner)
    return nodes


def _roles(
    instance: ir.ParserInstance | ir.ControlInstance, classes: dict[str, FieldsType]
) -> tuple[str, ...]:
    roles = []
    others = iter(("headers", "user"))
    for variable in instance.params:
        name = getattr(variable.type, "name", "")
        role = _ROLES.get(name)
        if role is None:
            role = next(others, None)
            if role is None or not isinstance(variable.type, FieldsType):
                raise unsupported(f"a {variable.type} as the parameter {variable.name}", variable.location)
        if isinstance(variable.type, FieldsType):
            classes.setdefault(role, variable.type)
        roles.append(role)
    return tuple(roles)
