"""A control as a sequence of logical tables: what each matches on, reads and writes, and when it runs.

Sub-controls and actions are expanded, with their parameters replaced by the arguments. A field is
the text of its path below the outermost control's parameter (`hdr.agg.slot`), local variables with the
path of their control. A logical table is a table, a gateway (the condition of an `if`), or statements in
a control's body, which the chip runs as a table without a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from switchagg.p4model import ir, walk
from switchagg.p4model.errors import Location
from switchagg.p4model.types import Direction


class TableKind(StrEnum):
    """The source construct of a logical table."""

    TABLE = "table"
    GATEWAY = "gateway"
    STATEMENT = "statement"


Guard = tuple[int, int]
"""A branch and which side of it. Two tables on different sides of one branch never run for one packet."""


@dataclass(slots=True, eq=False)
class LogicalTable:
    """A logical table."""

    name: str
    kind: TableKind
    gress: str
    location: Location
    guards: tuple[Guard, ...]
    table: ir.Table | None = None
    matches: set[str] = field(default_factory=set)
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    registers: dict[ir.ExternInstance, Location] = field(default_factory=dict)
    """Registers that it accesses, and the places of the accesses."""
    accessors: dict[ir.ExternInstance, set[ir.Action]] = field(default_factory=dict)
    """Of a table: the actions that access a register."""
    decided_by: tuple[LogicalTable, ...] = ()
    """Tables and gateways whose result decides if this one runs."""
    given: tuple[tuple[LogicalTable, frozenset[ir.Action]], ...] = ()
    """Actions that earlier tables can have run if this one runs, where that is known."""

    def follows_access(self, earlier: LogicalTable, register: ir.ExternInstance) -> bool:
        """True if an earlier table can have accessed a register for a packet that comes here."""
        if register not in earlier.registers or self.excludes(earlier):
            return False
        return all(
            logical is not earlier or bool(earlier.accessors.get(register, set()) & possible)
            for logical, possible in self.given
        )

    def excludes(self, other: LogicalTable) -> bool:
        """True if at most one of the two runs for any packet."""
        sides = dict(self.guards)
        return any(sides.get(branch, side) != side for branch, side in other.guards)


Names = Mapping[ir.Variable, str]
PossibleActions = tuple[tuple[LogicalTable, frozenset[ir.Action]], ...]


@dataclass(frozen=True, slots=True)
class Context:
    """The context of a statement.

    Attributes:
        names: fields that variables stand for.
        guards: the sides of the branches round it.
        deciders: the tables and gateways that decide these branches.
        given: actions that earlier tables can have run, where a branch determines them.
        path: the control's name.
    """

    names: Names
    path: str
    guards: tuple[Guard, ...] = ()
    deciders: tuple[LogicalTable, ...] = ()
    given: PossibleActions = ()

    def inside(
        self, guard: Guard, decider: LogicalTable, *given: tuple[LogicalTable, frozenset[ir.Action]]
    ) -> Context:
        """One side of a branch."""
        deciders = (*self.deciders, decider)
        return replace(self, guards=(*self.guards, guard), deciders=deciders, given=(*self.given, *given))


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
        self.tables: list[LogicalTable] = []
        self._gress = gress
        self._branches = 0
        where = Context({each: each.name for each in control.params}, control.name)
        self._body((*control.prologue, *control.body.body), where)

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

    def _body(self, statements: Sequence[ir.Stmt], where: Context) -> None:
        for index, statement in enumerate(statements):
            match statement:
                case ir.Block(body=body):
                    self._body(body, where)
                case ir.If():
                    logical, on_true, on_false = self._gateway(statement, where)
                    self._branches += 1
                    then = where.inside((self._branches, 0), logical, *on_true)
                    other = where.inside((self._branches, 1), logical, *on_false)
                    self._body((statement.then,), then)
                    if statement.orelse is not None:
                        self._body((statement.orelse,), other)
                    if _leaves(statement.then):
                        self._body(statements[index + 1 :], other)
                        return
                case ir.ActionSwitch():
                    self._action_switch(statement, where)
                case ir.ValueSwitch():
                    logical = self._new_table("switch", TableKind.GATEWAY, statement.location, where)
                    logical.matches |= self.fields(where.names, statement.subject)
                    self._branches += 1
                    for side, case in enumerate(statement.cases):
                        if case.body is not None:
                            self._body((case.body,), where.inside((self._branches, side), logical))
                case ir.CallStmt(call=ir.BlockApply() as call):
                    self._sub_control(call, where)
                case ir.CallStmt(call=ir.TableApply(table=table)):
                    self._table(table, where)
                case ir.Declare(init=None) | ir.Empty() | ir.Return() | ir.Exit():
                    pass
                case _:
                    logical = self._new_table(where.path, TableKind.STATEMENT, statement.location, where)
                    self._effects(logical, (statement,), where.names)

    def _action_switch(self, statement: ir.ActionSwitch, where: Context) -> None:
        table = statement.apply.table
        logical = self._table(table, where)
        self._branches += 1
        named = frozenset(action for case in statement.cases for action in case.actions)
        others = frozenset(ref.action for ref in table.actions) - named
        for side, case in enumerate(statement.cases):
            if case.body is not None:
                possible = frozenset(case.actions) | (others if case.default else frozenset())
                inner = where.inside((self._branches, side), logical, (logical, possible))
                self._body((case.body,), inner)

    def _new_table(self, name: str, kind: TableKind, location: Location, where: Context) -> LogicalTable:
        logical = LogicalTable(
            name, kind, self._gress, location, where.guards, decided_by=where.deciders, given=where.given
        )
        self.tables.append(logical)
        return logical

    def _gateway(
        self, statement: ir.If, where: Context
    ) -> tuple[LogicalTable, PossibleActions, PossibleActions]:
        """The table or gateway that decides, and the actions it can have run on either side."""
        applied = [each for each in walk.nodes(statement.condition) if isinstance(each, ir.TableApply)]
        tables = [self._table(each.table, where) for each in applied]
        fields = self.fields(where.names, statement.condition)
        if tables and not fields:
            # `if (t.apply().hit)` is decided by the table itself.
            return tables[-1], *_known(statement.condition, tables[-1])
        deciders = replace(where, deciders=(*where.deciders, *tables))
        logical = self._new_table(f"{where.path}: if", TableKind.GATEWAY, statement.location, deciders)
        logical.matches |= fields
        return logical, (), ()

    def _table(self, table: ir.Table, where: Context) -> LogicalTable:
        logical = self._new_table(table.control_name, TableKind.TABLE, table.location, where)
        logical.table = table
        logical.matches |= self.fields(where.names, [key.expr for key in table.keys])
        for ref in table.actions:
            self._action(logical, ref.action, ref.bound, where.names)
        if table.default is not None:
            self._action(logical, table.default.action, table.default.args, where.names)
        return logical

    def _sub_control(self, call: ir.BlockApply, where: Context) -> None:
        control = call.instance
        assert isinstance(control, ir.ControlInstance)
        inner: dict[ir.Variable, str] = dict(where.names)
        for argument in call.args:
            assert isinstance(argument.param, ir.Variable)
            key = None if argument.value is None else self.key(argument.value, where.names)
            inner[argument.param] = key or f"{control.control_name}.{argument.param.name}"
            if key is None and argument.value is not None:
                # A value that is computed for a parameter costs a statement.
                logical = self._new_table(control.control_name, TableKind.STATEMENT, call.location, where)
                logical.reads |= self.fields(where.names, argument.value)
                logical.writes.add(inner[argument.param])
        statements = (*control.prologue, *control.body.body)
        self._body(statements, replace(where, names=inner, path=control.control_name))

    # ---- what statements do

    def _action(
        self, logical: LogicalTable, action: ir.Action, args: Sequence[ir.Argument], names: Names
    ) -> None:
        inner: dict[ir.Variable, str] = dict(names)
        for argument in args:
            assert isinstance(argument.param, ir.Variable)
            key = None if argument.value is None else self.key(argument.value, names)
            if key is not None:
                inner[argument.param] = key
            elif argument.value is not None:
                logical.reads |= self.fields(names, argument.value)
        data = {each for each in action.params if each not in inner}
        found = LogicalTable(logical.name, logical.kind, logical.gress, action.location, ())
        self._effects(found, action.body.body, {**inner, **dict.fromkeys(data, "")})
        logical.reads |= found.reads
        logical.writes |= found.writes
        for register, location in found.registers.items():
            logical.registers.setdefault(register, location)
            logical.accessors.setdefault(register, set()).add(action)

    def _effects(self, logical: LogicalTable, statements: Sequence[ir.Stmt], names: Names) -> None:
        for statement in statements:
            match statement:
                case ir.Block(body=body):
                    self._effects(logical, body, names)
                case ir.If():
                    logical.reads |= self.fields(names, statement.condition)
                    branches = [each for each in (statement.then, statement.orelse) if each]
                    self._effects(logical, branches, names)
                case ir.Assign(target=target, value=value):
                    self._write(logical, target, names)
                    self._expression(logical, value, names)
                case ir.Declare(variable=variable, init=init):
                    if init is not None:
                        logical.writes.add(names.get(variable, f"{variable.name}@{variable.location.line}"))
                        self._expression(logical, init, names)
                case ir.CallStmt(call=call):
                    self._expression(logical, call, names)
                case _:
                    pass
        logical.reads.discard("")
        logical.writes.discard("")

    def _write(self, logical: LogicalTable, target: ir.Expr, names: Names) -> None:
        key = self.key(target, names)
        if key is not None:
            logical.writes.add(key)

    def _expression(self, logical: LogicalTable, expr: ir.Expr, names: Names) -> None:
        match expr:
            case ir.DirectActionCall(action=action, args=args):
                self._action(logical, action, args, names)
                return
            case ir.BuiltinCall(builtin=builtin, base=base) if builtin is not ir.Builtin.IS_VALID:
                logical.writes.add(f"{self.key(base, names)}.$valid$")
                return
            case ir.MethodCall(target=ir.ExternInstance() as instance):
                register = register_of(instance)
                if register is not None:
                    logical.registers.setdefault(register, expr.location)
                    for method in instance.methods.values():
                        logical.reads |= self._outer_fields(method, names)
            case _:
                pass
        args = getattr(expr, "args", ())
        for argument in args:
            if argument.value is None:
                continue
            if argument.param.direction in (Direction.OUT, Direction.INOUT):
                self._write(logical, argument.value, names)
            if argument.param.direction is not Direction.OUT:
                self._expression(logical, argument.value, names)
        if not args:
            logical.reads |= self.fields(names, expr)
            for inner in walk.parts(expr):
                if isinstance(inner, ir.Expr):
                    self._nested_calls(logical, inner, names)

    def _nested_calls(self, logical: LogicalTable, expr: ir.Expr, names: Names) -> None:
        for node in walk.nodes(expr):
            if isinstance(node, ir.MethodCall | ir.ExternCall | ir.FunctionCall):
                self._expression(logical, node, names)

    def _outer_fields(self, method: ir.Function, names: Names) -> set[str]:
        """The fields of the packet that a register action reads."""
        own = set(method.params)
        found: set[str] = set()
        for node in walk.nodes(method.body):
            if isinstance(node, ir.Assign | ir.If):
                roots = (node.value, node.target) if isinstance(node, ir.Assign) else (node.condition,)
                for root in roots:
                    found |= {each for each in self.fields({**names, **dict.fromkeys(own, "")}, root) if each}
        return {each for each in found if not each.startswith(".")}


def _known(condition: ir.Expr, logical: LogicalTable) -> tuple[PossibleActions, PossibleActions]:
    """Possible actions by `hit` or `miss` of a table: after a miss only the default action can have run."""
    if not (isinstance(condition, ir.FieldAccess) and isinstance(condition.base, ir.TableApply)):
        return (), ()
    table = condition.base.table
    on_miss = frozenset() if table.default is None else frozenset((table.default.action,))
    missed: PossibleActions = ((logical, on_miss),)
    return ((), missed) if condition.name == "hit" else (missed, ())


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
