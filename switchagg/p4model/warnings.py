"""Likely mistakes in a program that is right by the language, where it loses a value or leaves one undefined.

    overlap      out and inout arguments of one call name the same storage: the one copied back last wins
    unwritten    a way through a body leaves an out parameter without a value

An out parameter counts as written if any part of it is. Headers are not looked at, since they begin invalid,
nor parameters of the blocks that the architecture calls. Loops are taken to run, parsers to visit all states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

from switchagg.p4model import ir, walk
from switchagg.p4model.errors import Location, message
from switchagg.p4model.types import Direction, FieldsType, HeaderType, StackType, UnionType, underlying

_OUTS = (Direction.OUT, Direction.INOUT)
_CALLS = ir.FunctionCall | ir.DirectActionCall | ir.BlockApply | ir.ExternCall | ir.MethodCall
_Variables = frozenset[ir.Variable]
_Body = ir.Function | ir.Action
_Notes = tuple[tuple[str, Location], ...]


def warnings_of(program: ir.Program) -> list[str]:
    """Returns the warnings of a program by their places, each with its source line and notes."""
    found = sorted(_Warnings(program).found.items(), key=lambda item: (item[0][0].file, item[0][0].line))
    return [
        message("warning", reason, location, notes, program.sources) for (location, reason), notes in found
    ]


class _Warnings:
    """Collects warnings in `found`; all instances of one control give each of them once."""

    def __init__(self, program: ir.Program) -> None:
        self.found: dict[tuple[Location, str], _Notes] = {}
        self._flow = _Flow()
        self._seen: set[int] = set()
        inner = {id(each) for block in walk.blocks(program.main) for each in block.instances}
        for action in program.actions:
            self._body(action)
        for block in walk.blocks(program.main):
            self._block(block, inner=id(block) in inner)

    def _block(self, block: ir.BlockInstance, *, inner: bool) -> None:
        for each in block.instances:
            if isinstance(each, ir.ExternInstance):
                for method in each.methods.values():
                    self._body(method)
        if isinstance(block, ir.ControlInstance):
            for action in block.actions:
                self._body(action)
            for table in block.tables:
                for ref in table.actions:
                    self._overlaps(ref.bound)
            body = (*block.prologue, block.body)
        else:
            states = (stmt for state in block.states.values() for stmt in state.body)
            body = (*block.prologue, *states)
        self._calls(body)
        if inner:
            self._unwritten(block.params, self._flow.through(body), block)

    def _body(self, body: _Body) -> None:
        if id(body) not in self._seen:
            self._seen.add(id(body))
            self._calls((body.body,))
            self._unwritten(body.params, self._flow.writes(body), body)

    def _calls(self, stmts: tuple[ir.Stmt, ...]) -> None:
        for node in walk.nodes(stmts):
            if isinstance(node, _CALLS):
                self._overlaps(node.args)
            if isinstance(node, ir.FunctionCall):
                self._body(node.function)

    def _overlaps(self, args: Sequence[ir.Argument]) -> None:
        out = [(each.param.name, each.value) for each in args if each.param.direction in _OUTS]
        for (first, one), (second, other) in combinations(out, 2):
            if one is not None and other is not None and _overlap(one, other):
                reason = f"`{first}` and `{second}` write to the same place: the value of `{second}` stays"
                self.found[other.location, reason] = ((f"the argument for `{first}` is here", one.location),)

    def _unwritten(
        self, params: Iterable[ir.Variable], written: _Variables | None, owner: _Body | ir.BlockInstance
    ) -> None:
        for each in params:
            missing = written is not None and each not in written
            if missing and each.direction is Direction.OUT and not _begins_invalid(each):
                name = owner.name if isinstance(owner, ir.Function | ir.Action) else owner.type.name
                reason = f"`{name}` may leave its out parameter `{each.name}` unwritten"
                self.found[each.location, reason] = self._culprits(each, owner)

    def _culprits(self, variable: ir.Variable, owner: _Body | ir.BlockInstance) -> _Notes:
        """Returns the actions of tables that leave a variable unwritten, where others of them write it."""
        if not isinstance(owner, ir.ControlInstance):
            return ()
        actions = {id(ref.action): ref.action for table in walk.used(owner).tables for ref in table.actions}
        idle = [each for each in actions.values() if not self._flow.always_writes(each, variable)]
        if len(idle) == len(actions):
            return ()
        return tuple((f"action `{each.name}` does not write it", each.location) for each in idle)


class _Flow:
    """Finds the variables that are written on every way; None where no way leads to the end."""

    def __init__(self) -> None:
        self._known: dict[int, _Variables | None] = {}

    def writes(self, body: _Body) -> _Variables | None:
        """Returns what a function or action writes, variables of its block included."""
        if id(body) not in self._known:
            self._known[id(body)] = frozenset()
            self._known[id(body)] = self.through((body.body,))
        return self._known[id(body)]

    def always_writes(self, body: _Body, variable: ir.Variable) -> bool:
        """Returns True if no way through a body leaves a variable unwritten."""
        written = self.writes(body)
        return written is None or variable in written

    def through(self, stmts: Sequence[ir.Stmt]) -> _Variables | None:
        """Returns what is written on every way from the first statement to the end, or to a `return`."""
        returns: list[_Variables | None] = []
        return _common([self._sequence(stmts, frozenset(), returns), *returns])

    def _sequence(
        self, stmts: Sequence[ir.Stmt], written: _Variables | None, returns: list[_Variables | None]
    ) -> _Variables | None:
        for stmt in stmts:
            if written is None:
                return None
            written = self._statement(stmt, written, returns)
        return written

    def _statement(
        self, stmt: ir.Stmt | None, written: _Variables, returns: list[_Variables | None]
    ) -> _Variables | None:
        match stmt:
            case ir.Block(body=body):
                return self._sequence(body, written, returns)
            case ir.Assign(target=target):
                return written | self._called(stmt) | _roots(target)
            case ir.If():
                yes, no = self._branches(stmt.condition, written)
                return _common(
                    [
                        self._sequence((stmt.then,), yes, returns),
                        self._sequence((stmt.orelse,) if stmt.orelse else (), no, returns),
                    ]
                )
            case ir.ActionSwitch():
                return self._action_switch(stmt, written, returns)
            case ir.ValueSwitch(subject=subject, cases=cases):
                written |= self._called(subject)
                ends = [self._sequence((each.body,) if each.body else (), written, returns) for each in cases]
                return _common(ends if any(each.default for each in cases) else [*ends, written])
            case ir.For(init=init, condition=condition, update=update, body=body):
                # A body that leaves by `break` or `continue` is taken to run to its end.
                before = self._sequence(init, written, returns) or written
                before |= self._called(condition)
                return self._sequence((body, *update), before, returns)
            case ir.ForRange(body=body) | ir.ForEach(body=body):
                return self._sequence((body,), written, returns)
            case ir.Return():
                returns.append(written | self._called(stmt))
                return None
            case ir.Exit():
                return None
            case _:
                return written | self._called(stmt)

    def _branches(
        self, condition: ir.Expr, written: _Variables
    ) -> tuple[_Variables | None, _Variables | None]:
        """Returns what is written where a condition holds, and where it does not."""
        match condition:
            case ir.Unary(op=ir.UnaryOp.NOT, operand=operand):
                yes, no = self._branches(operand, written)
                return no, yes
            case ir.FieldAccess(base=ir.TableApply(table=table), name=name):
                hit, miss = _join(written, self._hit(table)), _join(written, self._miss(table))
                return (hit, miss) if name == "hit" else (miss, hit)
            case _:
                written |= self._called(condition)
                return written, written

    def _action_switch(
        self, stmt: ir.ActionSwitch, written: _Variables, returns: list[_Variables | None]
    ) -> _Variables | None:
        table = stmt.apply.table
        left = {id(ref.action): ref.action for ref in table.actions}
        ends: list[_Variables | None] = []
        for case in sorted(stmt.cases, key=lambda each: each.default):
            chosen = list(left.values()) if case.default else list(case.actions)
            after = _join(written, _common([self.writes(each) for each in chosen]))
            ends.append(self._sequence((case.body,) if case.body else (), after, returns))
            for each in chosen:
                left.pop(id(each), None)
        ends += [_join(written, self.writes(each)) for each in left.values()]
        return _common(ends)

    def _hit(self, table: ir.Table) -> _Variables | None:
        listed = [
            ref.action for ref in table.actions if all(m.name != "defaultonly" for m in ref.annotations)
        ]
        return _common([self.writes(each) for each in listed])

    def _miss(self, table: ir.Table) -> _Variables | None:
        return frozenset() if table.default is None else self.writes(table.default.action)

    def _called(self, *roots: object) -> _Variables:
        """Returns what the calls in an expression or statement write."""
        found: _Variables = frozenset()
        for node in walk.nodes(*roots):
            if isinstance(node, ir.TableApply):
                table = node.table
                both = [self._miss(table)] if not table.keys else [self._hit(table), self._miss(table)]
                found |= _common(both) or frozenset()
            elif isinstance(node, ir.BuiltinCall):
                found |= _roots(node.base)
            elif isinstance(node, _CALLS):
                for each in node.args:
                    if each.value is not None and each.param.direction in _OUTS:
                        found |= _roots(each.value)
                if isinstance(node, ir.DirectActionCall):
                    found |= self.writes(node.action) or frozenset()
        return found


def _common(ways: Sequence[_Variables | None]) -> _Variables | None:
    real = [each for each in ways if each is not None]
    return frozenset.intersection(*real) if real else None


def _join(first: _Variables, second: _Variables | None) -> _Variables | None:
    return None if second is None else first | second


def _roots(place: ir.Expr) -> _Variables:
    storage = walk.storage(place)
    return frozenset(each for each in storage[:1] if isinstance(each, ir.Variable))


def _overlap(one: ir.Expr, other: ir.Expr) -> bool:
    """Returns True if two places share storage for certain: slices bit by bit, computed indices never."""
    first, second = walk.storage(one), walk.storage(other)
    if None in first or None in second or not walk.overlap(first, second):
        return False
    if isinstance(one, ir.Slice) and isinstance(other, ir.Slice) and one.base.type == other.base.type:
        return one.low <= other.high and other.low <= one.high
    return True


def _begins_invalid(variable: ir.Variable) -> bool:
    type_ = underlying(variable.type)
    headers = HeaderType | UnionType | StackType
    if isinstance(type_, FieldsType) and not isinstance(type_, headers):
        return all(isinstance(underlying(each.type), headers) for each in type_.fields)
    return isinstance(type_, headers)
