"""Rules on registers: one access for a packet, and only what a stateful ALU can compute.

A word of a register is one value of 1, 8, 16 or 32 bits (64 as a pair), or two of equal width, low and high.
A program has two comparisons; each half gets one of two new values, chosen by the two comparisons' four
outcomes; each value is one operation on a half of the old word, a field of the packet and a constant; of the
packet it can use two fields, or two values that the input crossbar makes of fields; and it gives out one
value: a half of the old or the new word, the outcome of the comparisons, or, where a word is one value, an
operation of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from switchagg.p4model import ir, walk
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.ir import BinaryOp
from switchagg.p4model.target_tofino import resources
from switchagg.p4model.target_tofino.logical_tables import Flow, LogicalTable, register_of
from switchagg.p4model.types import BitType, BoolType, IntType, StructType, Type, underlying


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule of the chip that a program breaks; `notes` are further places."""

    reason: str
    location: Location
    notes: tuple[tuple[str, Location], ...] = ()

    def text(self, sources: Mapping[str, str]) -> str:
        """As an error message, with the source lines."""
        return str(P4Error(self.reason, self.location, *self.notes).with_sources(sources))


_ONE_OPERATION = "a new value is one operation on two operands"
_UPDATE_OPS = {
    BinaryOp.ADD, BinaryOp.SUB, BinaryOp.SAT_ADD, BinaryOp.SAT_SUB, BinaryOp.BIT_AND, BinaryOp.BIT_OR,
    BinaryOp.BIT_XOR,
}  # fmt: skip
_COMPARE_OPS = {BinaryOp.EQ, BinaryOp.NE, BinaryOp.LT, BinaryOp.LE, BinaryOp.GT, BinaryOp.GE}


def check_programs(instance: ir.ExternInstance) -> Iterator[Finding]:
    """Operations of a RegisterAction that the hardware does not have."""
    if instance.type.name not in ("RegisterAction", "DirectRegisterAction"):
        return
    yield from _word(instance)
    for method in instance.methods.values():
        yield from _Program(method).findings()


def _word(instance: ir.ExternInstance) -> Iterator[Finding]:
    type_ = instance.type.type_args[0]
    halves = _halves(type_)
    widths = {_width(each) for each in halves}
    allowed = {1: (1, 8, 16, 32, 64), 2: (8, 16, 32)}.get(len(halves), ())
    if len(widths) != 1 or not widths <= {*allowed}:
        yield Finding(
            f"a register's word of type `{type_}`: a stateful ALU works on 1, 8, 16, 32 or 64 bits, or on "
            "two halves of 8, 16 or 32",
            instance.location,
        )


def _halves(type_: Type) -> tuple[Type, ...]:
    inner = underlying(type_)
    return tuple(each.type for each in inner.fields) if isinstance(inner, StructType) else (inner,)


def _width(type_: Type) -> int | None:
    inner = underlying(type_)
    if isinstance(inner, BoolType):
        return 1
    return inner.width if isinstance(inner, BitType | IntType) else None


class _Program:
    """One register action's body."""

    def __init__(self, method: ir.Function) -> None:
        self.method = method
        self.word = method.params[0] if method.params else None
        self.output = method.params[1] if len(method.params) > 1 else None
        self.compares: list[ir.Binary] = []
        self.updates: dict[str, list[ir.Assign]] = {}
        self.outputs: list[ir.Assign] = []
        self.operands: dict[str, ir.Expr] = {}
        self.locals: dict[ir.Variable, ir.Expr] = {}
        self.problems: list[Finding] = []
        self.depth = 0

    def findings(self) -> list[Finding]:
        self._statements(self.method.body.body)
        if len(self.compares) > resources.COMPARISONS:
            self._refuse(
                f"{len(self.compares)} comparisons; a stateful ALU has {resources.COMPARISONS}",
                self.compares[-1],
            )
        for name, updates in self.updates.items():
            if len(updates) > resources.UPDATES:
                half = f"`{name}`" if name else "the word"
                self._refuse(
                    f"{half} gets {len(updates)} different values; it can get {resources.UPDATES}",
                    updates[-1],
                )
        if len(self.operands) > resources.PHV_OPERANDS:
            self._refuse(
                f"{len(self.operands)} fields of the packet ({', '.join(self.operands)}); a stateful ALU "
                f"takes {resources.PHV_OPERANDS}",
                list(self.operands.values())[-1],
            )
        sources = {self._source(each.value) for each in self.outputs} - {"0"}
        allowed = 1 if self._paired() else resources.UPDATES
        if len(sources) > allowed:
            self._refuse(
                f"{len(sources)} different values are given out; here it can be {allowed}", self.outputs[-1]
            )
        return self.problems

    def _refuse(self, reason: str, node: ir.Expr | ir.Stmt) -> None:
        self.problems.append(Finding(reason, node.location))

    # ---- statements

    def _statements(self, statements: Sequence[ir.Stmt]) -> None:
        for statement in statements:
            match statement:
                case ir.Block(body=body):
                    self._statements(body)
                case ir.If():
                    self._condition(statement.condition)
                    self.depth += 1
                    self._statements([each for each in (statement.then, statement.orelse) if each])
                    self.depth -= 1
                case ir.Assign(target=target):
                    self._assign(statement, target)
                case ir.Declare(variable=variable, init=init):
                    if init is not None:
                        self.locals[variable] = init
                case ir.Empty():
                    pass
                case _:
                    self._refuse("a stateful ALU has no such statement", statement)

    def _assign(self, statement: ir.Assign, target: ir.Expr) -> None:
        half = self._half(target)
        if half == "" and isinstance(statement.value, ir.StructLiteral):
            for element in statement.value.elements:
                self._update(element)
        elif half is not None:
            there = self.updates.setdefault(half, [])
            if all(self._text(each.value) != self._text(statement.value) for each in there):
                there.append(statement)
            self._update(statement.value)
        elif isinstance(target, ir.VarRef) and target.variable is self.output:
            if not self.depth:
                # Earlier assignments are always overwritten.
                self.outputs.clear()
            self.outputs.append(statement)
            self._given_out(statement.value)
        elif isinstance(target, ir.VarRef) and target.variable.scope is ir.Scope.LOCAL:
            self.locals[target.variable] = statement.value
        else:
            self._refuse("a stateful ALU writes its word and its result, nothing else", statement)

    def _half(self, expr: ir.Expr) -> str | None:
        """The name of the half of the word that an expression is; empty for a word of one, or None."""
        match expr:
            case ir.VarRef(variable=variable) if variable is self.word:
                return ""
            case ir.FieldAccess(base=ir.VarRef(variable=variable), name=name) if variable is self.word:
                return name
            case _:
                return None

    # ---- expressions

    def _condition(self, expr: ir.Expr) -> None:
        match expr:
            case ir.Binary(op=BinaryOp.AND | BinaryOp.OR, left=left, right=right):
                self._condition(left)
                self._condition(right)
            case ir.Unary(op=ir.UnaryOp.NOT, operand=operand):
                self._condition(operand)
            case ir.Binary(op=op) if op in _COMPARE_OPS:
                text = self._text(expr)
                if all(self._text(each) != text for each in self.compares):
                    self.compares.append(expr)
                self._linear(expr.left)
                self._linear(expr.right)
            case ir.VarRef(variable=variable) if variable in self.locals:
                self._condition(self.locals[variable])
            case ir.Literal():
                pass
            case _:
                if isinstance(expr.type, BoolType) and self._is_plain(expr):
                    self._operand(expr)
                else:
                    self._refuse("a stateful ALU's condition compares two sums", expr)

    def _linear(self, expr: ir.Expr) -> None:
        """A side of a comparison: a sum of a half, a field and a constant."""
        match expr:
            case ir.Binary(op=BinaryOp.ADD | BinaryOp.SUB, left=left, right=right):
                self._linear(left)
                self._linear(right)
            case ir.Unary(op=ir.UnaryOp.NEGATE, operand=operand):
                self._linear(operand)
            case ir.Binary(op=BinaryOp.BIT_AND, left=left, right=ir.Literal()):
                self._linear(left)
            case _:
                self._plain(expr, "a side of a comparison is a sum of the word, a field and a constant")

    def _of_packet(self, expr: ir.Expr) -> bool:
        """True if the input crossbar can make this of fields alone: bits put together, or hashed."""
        made = {BinaryOp.CONCAT, BinaryOp.BIT_XOR, BinaryOp.BIT_AND, BinaryOp.BIT_OR}
        for node in walk.nodes(expr):
            if isinstance(node, ir.VarRef) and node.variable in (self.word, self.output, *self.locals):
                return False
            if isinstance(node, ir.Binary) and node.op not in made:
                return False
            if isinstance(node, ir.FunctionCall | ir.ExternCall | ir.TableApply | ir.MethodCall):
                return False
        return True

    def _update(self, expr: ir.Expr) -> None:
        if self._of_packet(expr):
            self._operand(expr)
            return
        match expr:
            case ir.Binary(op=op, left=left, right=right):
                if op not in _UPDATE_OPS:
                    self._refuse(f"a stateful ALU has no `{op}`", expr)
                    return
                for side in (left, right):
                    match side:
                        case ir.Unary(op=ir.UnaryOp.INVERT, operand=operand):
                            self._plain(operand, _ONE_OPERATION)
                        case _:
                            self._plain(side, _ONE_OPERATION)
            case ir.Unary(operand=operand):
                self._plain(operand, _ONE_OPERATION)
            case ir.ExternCall(method=method) if method.name in ("min", "max"):
                for value in _values(expr.args):
                    self._plain(value, _ONE_OPERATION)
            case ir.MethodCall(method=method) if method.owner == "MathUnit":
                for value in _values(expr.args):
                    self._plain(value, "a math unit takes one operand")
            case _:
                self._plain(expr, _ONE_OPERATION)

    def _given_out(self, expr: ir.Expr) -> None:
        match expr:
            case ir.MethodCall(target=ir.This(), method=method) if method.name == "predicate":
                for value in _values(expr.args):
                    self._condition(value)
            case ir.Binary() | ir.Unary() if isinstance(expr.type, BoolType):
                self._condition(expr)
            case ir.Ternary(yes=ir.Literal(), no=ir.Literal()):
                self._condition(expr.condition)
            case ir.Cast(operand=operand):
                self._given_out(operand)
            case ir.Binary() | ir.Unary() | ir.ExternCall() if not self._paired():
                # The ALU of the unused half computes it.
                self._update(expr)
            case ir.Binary() | ir.Unary():
                self._refuse("what is given out is a half of the word, as it was or as it will be", expr)
            case _:
                reason = "what is given out is a half of the word, or the outcome of the comparisons"
                self._plain(expr, reason)

    def _paired(self) -> bool:
        return self.word is not None and len(_halves(self.word.type)) > 1

    def _is_plain(self, expr: ir.Expr) -> bool:
        match expr:
            case ir.Literal() | ir.EnumLiteral() | ir.VarRef():
                return True
            case ir.FieldAccess(base=base) | ir.Slice(base=base):
                return self._is_plain(base)
            case ir.Cast(operand=operand):
                return self._is_plain(operand)
            case ir.MethodCall(method=method):
                return method.owner == "RegisterParam"
            case _:
                return False

    def _plain(self, expr: ir.Expr, otherwise: str) -> None:
        """A half of the word, a field of the packet, or a constant."""
        match expr:
            case ir.VarRef(variable=variable) if variable in self.locals:
                self._update(self.locals[variable])
            case _ if not self._is_plain(expr) and not self._of_packet(expr):
                self._refuse(otherwise, expr)
            case _:
                self._operand(expr)

    def _operand(self, expr: ir.Expr) -> None:
        if isinstance(expr, ir.Cast):
            self._operand(expr.operand)
        elif isinstance(expr, ir.Literal | ir.EnumLiteral | ir.MethodCall) or self._half(expr) is not None:
            pass
        elif not (isinstance(expr, ir.VarRef) and expr.variable is self.output):
            self.operands.setdefault(self._text(expr), expr)

    def _source(self, expr: ir.Expr) -> str:
        """The source of an output value; `0` for a constant zero, which needs no source."""
        match expr:
            case ir.Literal(value=0):
                return "0"
            case ir.Literal() | ir.EnumLiteral():
                return "constant"
            case _:
                return self._text(expr)

    def _text(self, expr: ir.Expr) -> str:
        match expr:
            case ir.VarRef(variable=variable):
                return variable.name
            case ir.FieldAccess(base=base, name=name):
                return f"{self._text(base)}.{name}"
            case ir.Slice(base=base, high=high, low=low):
                return f"{self._text(base)}[{high}:{low}]"
            case ir.Literal(value=value):
                return str(value)
            case ir.EnumLiteral(name=name):
                return name
            case ir.Binary(op=op, left=left, right=right):
                return f"({self._text(left)} {op} {self._text(right)})"
            case ir.Unary(op=unary, operand=operand):
                return f"{unary}{self._text(operand)}"
            case ir.Cast(operand=operand):
                return self._text(operand)
            case _:
                inner = ", ".join(self._text(each) for each in walk.parts(expr) if isinstance(each, ir.Expr))
                return f"{type(expr).__name__}@{expr.location.line}({inner})"


def _values(args: Iterable[ir.Argument]) -> list[ir.Expr]:
    return [each.value for each in args if each.value is not None]


def check_accesses(flow: Flow, instances: Sequence[ir.ExternInstance]) -> Iterator[Finding]:
    """Accesses of a control to registers that a Tofino does not allow."""
    yield from _once(flow.tables)
    yield from _once_in_an_action(flow.tables)
    yield from _actions(instances)


def _once(tables: Sequence[LogicalTable]) -> Iterator[Finding]:
    for index, logical in enumerate(tables):
        for register, location in logical.registers.items():
            for earlier in tables[:index]:
                if logical.follows_access(earlier, register):
                    yield Finding(
                        f"register `{register.name}` is accessed twice for one packet; a Tofino can access a "
                        "register once",
                        location,
                        (("the access before it is here", earlier.registers[register]),),
                    )
                    break


def _once_in_an_action(tables: Sequence[LogicalTable]) -> Iterator[Finding]:
    seen: set[ir.Action] = set()
    for logical in tables:
        if logical.table is None:
            continue
        for ref in logical.table.actions:
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
        if len(actions) > resources.REGISTER_ACTIONS:
            extra = actions[resources.REGISTER_ACTIONS]
            yield Finding(
                f"register `{register.name}` has {len(actions)} actions; a stateful ALU has "
                f"{resources.REGISTER_ACTIONS} programs",
                extra.location,
                (("the register is declared here", register.location),),
            )
