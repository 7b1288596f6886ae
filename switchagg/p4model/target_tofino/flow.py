"""A control as a sequence of logical tables: what each matches on, reads and writes, and when it runs.

Sub-controls and actions are followed into, with their parameters replaced by the arguments. A field is
the text of its path below the outermost control's parameter (`hdr.agg.slot`), local variables with the
path of their control. A logical table is a table, a gateway (the condition of an `if`), or statements in
a control's body, which the chip runs as a table without a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from switchagg.p4model import ir, walk
from switchagg.p4model.errors import Location
from switchagg.p4model.types import Direction


class UnitKind(StrEnum):
    """What a logical table is in the source."""

    TABLE = "table"
    GATEWAY = "gateway"
    STATEMENT = "statement"


Guard = tuple[int, int]
"""A branch and which side of it. Two units on different sides of one branch never run for one packet."""


@dataclass(slots=True, eq=False)
class Unit:
    """A logical table."""

    name: str
    kind: UnitKind
    gress: str
    location: Location
    guards: tuple[Guard, ...]
    table: ir.Table | None = None
    matches: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    registers: dict[ir.ExternInstance, Location] = field(default_factory=dict)
    """and where each is accessed"""
    decided_by: tuple[Unit, ...] = ()
    """the tables and gateways whose result says whether this one runs"""

    def excludes(self, other: Unit) -> bool:
        """Whether at most one of the two runs for any packet."""
        sides = dict(self.guards)
        return any(sides.get(branch, side) != side for branch, side in other.guards)


Names = Mapping[ir.Variable, str]


def register_of(instance: ir.ExternInstance) -> ir.ExternInstance | None:
    """The register that an extern object's methods access."""
    if instance.type.name in ("Register", "DirectRegister"):
        return instance
    if instance.type.name in ("RegisterAction", "DirectRegisterAction"):
        register = instance.args.get("reg")
        return register if isinstance(register, ir.ExternInstance) else None
    return None


class Flow:
    """Collects the logical tables of one control, ingress or egress."""

    def __init__(self, control: ir.ControlInstance, gress: str) -> None:
        self.units: list[Unit] = []
        self._gress = gress
        self._branches = 0
        names = {each: each.name for each in control.params}
        self._body((*control.prologue, *control.body.body), names, (), (), control.name)

    # ---- names

    def key(self, expr: ir.Expr, names: Names) -> str | None:
        """The field that an expression stands for; None where it is no field."""
        match expr:
            case ir.VarRef(variable=variable):
                return names.get(variable, f"{variable.name}@{variable.location.line}")
            case ir.FieldAccess(base=base, name=name):
                inner = self.key(base, names)
                return None if inner is None else f"{inner}.{name}"
            case ir.Index(base=base, index=ir.Literal(value=value)):
                inner = self.key(base, names)
                return None if inner is None else f"{inner}[{value}]"
            case ir.Slice(base=base):
                return self.key(base, names)
            case _:
                return None

    def fields(self, names: Names, *roots: object) -> set[str]:
        """All fields that expressions read."""
        found: set[str] = set()
        pending = list(roots)
        while pending:
            root = pending.pop()
            if isinstance(root, tuple | list):
                pending.extend(root)
                continue
            if isinstance(root, ir.BuiltinCall):
                inner = self.key(root.base, names)
                found.add(f"{inner}.$valid$")
                continue
            key = self.key(root, names) if isinstance(root, ir.Expr) else None
            if key is not None:
                found.add(key)
            elif isinstance(root, ir.Expr | ir.Argument):
                pending.extend(walk.parts(root))
        return found

    # ---- statements

    def _body(
        self,
        statements: Sequence[ir.Stmt],
        names: Names,
        guards: tuple[Guard, ...],
        deciders: tuple[Unit, ...],
        path: str,
    ) -> None:
        for index, statement in enumerate(statements):
            match statement:
                case ir.Block(body=body):
                    self._body(body, names, guards, deciders, path)
                case ir.If():
                    unit = self._gateway(statement, names, guards, deciders, path)
                    self._branches += 1
                    branch = self._branches
                    inner = (*deciders, unit)
                    self._body((statement.then,), names, (*guards, (branch, 0)), inner, path)
                    if statement.orelse is not None:
                        self._body((statement.orelse,), names, (*guards, (branch, 1)), inner, path)
                    if _leaves(statement.then):
                        rest = statements[index + 1 :]
                        self._body(rest, names, (*guards, (branch, 1)), inner, path)
                        return
                case ir.ActionSwitch():
                    unit = self._table(statement.apply.table, names, guards, deciders)
                    self._cases([case.body for case in statement.cases], unit, names, guards, deciders, path)
                case ir.ValueSwitch():
                    unit = self._unit("switch", UnitKind.GATEWAY, statement.location, guards, deciders)
                    unit.matches |= self.fields(names, statement.subject)
                    self._cases([case.body for case in statement.cases], unit, names, guards, deciders, path)
                case ir.CallStmt(call=ir.BlockApply() as call):
                    self._sub_control(call, names, guards, deciders)
                case ir.CallStmt(call=ir.TableApply(table=table)):
                    self._table(table, names, guards, deciders)
                case ir.Declare(init=None) | ir.Empty() | ir.Return() | ir.Exit():
                    pass
                case _:
                    unit = self._unit(path, UnitKind.STATEMENT, statement.location, guards, deciders)
                    self._effects(unit, (statement,), names)

    def _cases(
        self,
        bodies: Sequence[ir.Stmt | None],
        unit: Unit,
        names: Names,
        guards: tuple[Guard, ...],
        deciders: tuple[Unit, ...],
        path: str,
    ) -> None:
        self._branches += 1
        branch = self._branches
        for side, body in enumerate(bodies):
            if body is not None:
                self._body((body,), names, (*guards, (branch, side)), (*deciders, unit), path)

    def _unit(
        self,
        name: str,
        kind: UnitKind,
        location: Location,
        guards: tuple[Guard, ...],
        deciders: tuple[Unit, ...],
    ) -> Unit:
        unit = Unit(name, kind, self._gress, location, guards, decided_by=deciders)
        self.units.append(unit)
        return unit

    def _gateway(
        self,
        statement: ir.If,
        names: Names,
        guards: tuple[Guard, ...],
        deciders: tuple[Unit, ...],
        path: str,
    ) -> Unit:
        applied = [each for each in walk.nodes(statement.condition) if isinstance(each, ir.TableApply)]
        tables = [self._table(each.table, names, guards, deciders) for each in applied]
        fields = self.fields(names, statement.condition)
        if tables and not fields:
            # `if (t.apply().hit)` is decided by the table itself.
            return tables[-1]
        unit = self._unit(f"{path}: if", UnitKind.GATEWAY, statement.location, guards, (*deciders, *tables))
        unit.matches |= fields
        return unit

    def _table(
        self, table: ir.Table, names: Names, guards: tuple[Guard, ...], deciders: tuple[Unit, ...]
    ) -> Unit:
        unit = self._unit(table.control_name, UnitKind.TABLE, table.location, guards, deciders)
        unit.table = table
        unit.matches |= self.fields(names, [key.expr for key in table.keys])
        for ref in table.actions:
            self._action(unit, ref.action, ref.bound, names)
        if table.default is not None:
            self._action(unit, table.default.action, table.default.args, names)
        return unit

    def _sub_control(
        self, call: ir.BlockApply, names: Names, guards: tuple[Guard, ...], deciders: tuple[Unit, ...]
    ) -> None:
        control = call.instance
        assert isinstance(control, ir.ControlInstance)
        inner: dict[ir.Variable, str] = dict(names)
        for argument in call.args:
            assert isinstance(argument.param, ir.Variable)
            key = None if argument.value is None else self.key(argument.value, names)
            inner[argument.param] = key or f"{control.control_name}.{argument.param.name}"
            if key is None and argument.value is not None:
                # A value that is computed for a parameter costs a statement.
                unit = self._unit(control.control_name, UnitKind.STATEMENT, call.location, guards, deciders)
                unit.reads |= self.fields(names, argument.value)
                unit.writes.add(inner[argument.param])
        self._body((*control.prologue, *control.body.body), inner, guards, deciders, control.control_name)

    # ---- what statements do

    def _action(self, unit: Unit, action: ir.Action, args: Sequence[ir.Argument], names: Names) -> None:
        inner: dict[ir.Variable, str] = dict(names)
        for argument in args:
            assert isinstance(argument.param, ir.Variable)
            key = None if argument.value is None else self.key(argument.value, names)
            if key is not None:
                inner[argument.param] = key
            elif argument.value is not None:
                unit.reads |= self.fields(names, argument.value)
        data = {each for each in action.params if each not in inner}
        found = Unit(unit.name, unit.kind, unit.gress, action.location, ())
        self._effects(found, action.body.body, {**inner, **dict.fromkeys(data, "")})
        unit.reads |= found.reads
        unit.writes |= found.writes
        for register, location in found.registers.items():
            unit.registers.setdefault(register, location)

    def _effects(self, unit: Unit, statements: Sequence[ir.Stmt], names: Names) -> None:
        for statement in statements:
            match statement:
                case ir.Block(body=body):
                    self._effects(unit, body, names)
                case ir.If():
                    unit.reads |= self.fields(names, statement.condition)
                    self._effects(unit, [each for each in (statement.then, statement.orelse) if each], names)
                case ir.Assign(target=target, value=value):
                    self._write(unit, target, names)
                    self._expression(unit, value, names)
                case ir.Declare(variable=variable, init=init):
                    if init is not None:
                        unit.writes.add(names.get(variable, f"{variable.name}@{variable.location.line}"))
                        self._expression(unit, init, names)
                case ir.CallStmt(call=call):
                    self._expression(unit, call, names)
                case _:
                    pass
        unit.reads.discard("")
        unit.writes.discard("")

    def _write(self, unit: Unit, target: ir.Expr, names: Names) -> None:
        key = self.key(target, names)
        if key is not None:
            unit.writes.add(key)

    def _expression(self, unit: Unit, expr: ir.Expr, names: Names) -> None:
        match expr:
            case ir.DirectActionCall(action=action, args=args):
                self._action(unit, action, args, names)
                return
            case ir.BuiltinCall(builtin=builtin, base=base) if builtin is not ir.Builtin.IS_VALID:
                unit.writes.add(f"{self.key(base, names)}.$valid$")
                return
            case ir.MethodCall(target=ir.ExternInstance() as instance):
                register = register_of(instance)
                if register is not None:
                    unit.registers.setdefault(register, expr.location)
                    for method in instance.methods.values():
                        unit.reads |= self._outer_fields(method, names)
            case _:
                pass
        args = getattr(expr, "args", ())
        for argument in args:
            if argument.value is None:
                continue
            if argument.param.direction in (Direction.OUT, Direction.INOUT):
                self._write(unit, argument.value, names)
            if argument.param.direction is not Direction.OUT:
                self._expression(unit, argument.value, names)
        if not args:
            unit.reads |= self.fields(names, expr)
            for inner in walk.parts(expr):
                if isinstance(inner, ir.Expr):
                    self._nested_calls(unit, inner, names)

    def _nested_calls(self, unit: Unit, expr: ir.Expr, names: Names) -> None:
        for node in walk.nodes(expr):
            if isinstance(node, ir.MethodCall | ir.ExternCall | ir.FunctionCall):
                self._expression(unit, node, names)

    def _outer_fields(self, method: ir.Function, names: Names) -> set[str]:
        """What a register action reads of the packet."""
        own = set(method.params)
        found: set[str] = set()
        for node in walk.nodes(method.body):
            if isinstance(node, ir.Assign | ir.If):
                roots = (node.value, node.target) if isinstance(node, ir.Assign) else (node.condition,)
                for root in roots:
                    found |= {each for each in self.fields({**names, **dict.fromkeys(own, "")}, root) if each}
        return {each for each in found if not each.startswith(".")}


def _leaves(statement: ir.Stmt) -> bool:
    match statement:
        case ir.Return() | ir.Exit():
            return True
        case ir.Block(body=body):
            return any(map(_leaves, body))
        case ir.If(then=then, orelse=orelse):
            return orelse is not None and _leaves(then) and _leaves(orelse)
        case _:
            return False


def pipelines(program: ir.Program) -> Iterator[tuple[str, ir.ControlInstance]]:
    """Ingress and egress of each pipe, by the names of the package's parameters."""
    for pipe in program.main.args.values():
        if isinstance(pipe, ir.PackageInstance):
            for role in ("ingress", "egress"):
                control = pipe.args.get(role)
                if isinstance(control, ir.ControlInstance):
                    yield role, control
