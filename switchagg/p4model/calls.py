"""Checking calls: which function, method, action or block is meant, and whether the arguments fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from switchagg.p4model import ast, ir, restrictions
from switchagg.p4model.casts import coerce
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.generics import Bindings, has_variables, substitute, unify
from switchagg.p4model.symbolic import is_constant
from switchagg.p4model.symbols import Env, Overloads, UserFunction
from switchagg.p4model.types import (
    BOOL,
    DONT_CARE,
    VOID,
    Direction,
    DontCareType,
    ExternType,
    FieldsType,
    HeaderType,
    Method,
    Parameter,
    StackType,
    Type,
    TypeVar,
    UnionType,
    has_varbit,
    width_of,
)

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker

_SIZES = {"minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"}


class Calls:
    """Checks calls in an environment."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    def call(self, node: ast.CallExpr, env: Env, expected: Type | None) -> ir.Expr:
        """A call as an expression; `expected` helps to find type arguments. Raises `P4Error`."""
        match node.callee:
            case ast.PathExpr():
                return self._path(node, node.callee, env, expected)
            case ast.MemberExpr():
                return self._member(node, node.callee, env, expected)
            case _:
                raise P4Error("this cannot be called", node.location)

    # ---- by name

    def _path(self, node: ast.CallExpr, callee: ast.PathExpr, env: Env, expected: Type | None) -> ir.Expr:
        symbol = env.lookup(callee.name, top=callee.absolute)
        match symbol:
            case None:
                raise P4Error(f"`{callee.name}` is not declared", callee.location)
            case ir.Action():
                if env.frame.kind not in ("control", "action"):
                    raise P4Error(f"actions cannot be called from a {env.frame.kind}", node.location)
                args = self.arguments(
                    self.checker.action_params[symbol], node.args, env, node.location, callee.name
                )
                variables = {each.name: each for each in symbol.params}
                linked = tuple(ir.Argument(variables[each.param.name], each.value) for each in args)
                return ir.DirectActionCall(VOID, node.location, symbol, linked)
            case Overloads():
                function = self._choose(symbol.members, node, callee.name, env)
                if isinstance(function, UserFunction):
                    return self._function(function, node, env, expected)
                return self._extern_function(function, node, env, expected)
            case _:
                raise P4Error(
                    f"`{callee.name}` cannot be called",
                    callee.location,
                    notes=(("it is declared here", symbol.location),),
                )

    def _choose(
        self, members: Sequence[UserFunction | Method], node: ast.CallExpr, name: str, env: Env
    ) -> UserFunction | Method:
        fitting = [each for each in members if accepts(each.params, node.args)]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            if len(members) == 1:
                match_arguments(members[0].params, node.args, node.location, name)
            raise P4Error(
                f"no `{name}` takes these arguments",
                node.location,
                notes=tuple(("this one does not", each.location) for each in members),
            )
        fitting = [each for each in fitting if self._suits(each, node, env)] or fitting
        exact = [each for each in fitting if len(each.params) == len(node.args)] or fitting
        if len(exact) == 1:
            return exact[0]
        raise P4Error(
            f"more than one `{name}` takes these arguments",
            node.location,
            notes=tuple(("this one does", each.location) for each in fitting),
        )

    def _suits(self, function: UserFunction | Method, node: ast.CallExpr, env: Env) -> bool:
        """Whether arguments have the types of parameters, as far as these are known."""
        matched = match_arguments(function.params, node.args, node.location, function.name)
        for param in function.params:
            arg = matched.get(param.name)
            if arg is None or isinstance(arg.value, ast.DontCareExpr) or has_variables(param.type):
                continue
            try:
                self.checker.exprs.check(arg.value, env, param.type)
            except P4Error:
                return False
        return True

    def _function(
        self, function: UserFunction, node: ast.CallExpr, env: Env, expected: Type | None
    ) -> ir.Expr:
        bindings, args = self._infer(
            function.type_params, function.params, function.returns, node, env, expected, function.name
        )
        type_args = self._closed(function.type_params, bindings, node, function.name)
        made = self.checker.functions.instantiate(function, type_args, node.location)
        by_name = {each.name: each for each in made.params}
        linked = tuple(ir.Argument(by_name[each.param.name], each.value) for each in args)
        return ir.FunctionCall(made.returns, node.location, made, linked)

    def _extern_function(
        self, method: Method, node: ast.CallExpr, env: Env, expected: Type | None
    ) -> ir.Expr:
        returns = method.returns or VOID
        bindings, args = self._infer(
            method.type_params, method.params, returns, node, env, expected, str(method)
        )
        type_args = self._closed(method.type_params, bindings, node, str(method))
        restrictions.extern_call(method, env.frame, node.location)
        if method.name == "static_assert" and not method.owner:
            return _static_assert(args, node.location)
        type_ = substitute(returns, bindings, self.checker.types.instantiate_name)
        return ir.ExternCall(type_, node.location, method, type_args, args)

    # ---- members

    def _member(self, node: ast.CallExpr, callee: ast.MemberExpr, env: Env, expected: Type | None) -> ir.Expr:
        if isinstance(callee.base, ast.TypeExpr):
            return self._on_type(node, callee, callee.base, env)
        if isinstance(callee.base, ast.PathExpr):
            symbol = env.lookup(callee.base.name, top=callee.base.absolute)
            if isinstance(symbol, ir.Table):
                return self._table(symbol, node, callee, env)
            if isinstance(symbol, ir.ParserInstance | ir.ControlInstance):
                return self._block(symbol, node, callee, env)
        base = self.checker.exprs.check(callee.base, env)
        match base.type:
            case ExternType():
                return self._method(base, base.type, node, callee, env, expected)
            case FieldsType() | StackType():
                return self._builtin(base, node, callee)
            case _:
                raise P4Error(f"`{base.type}` has no method `{callee.member}`", callee.location)

    def _on_type(self, node: ast.CallExpr, callee: ast.MemberExpr, base: ast.TypeExpr, env: Env) -> ir.Expr:
        block = self.checker.types.block(base.type, env)
        if block is not None and callee.member == "apply":
            # `C.apply(...)` makes an instance that is named like its control.
            instance = self.checker.instances.direct(block, env, node.location)
            return self._block(instance, node, callee, env)
        type_ = self.checker.types.resolve(base.type, env)
        if callee.member in _SIZES:
            return self._size(type_, callee.member, node)
        raise P4Error(f"type `{type_}` has no method `{callee.member}`", callee.location)

    def _table(self, table: ir.Table, node: ast.CallExpr, callee: ast.MemberExpr, env: Env) -> ir.Expr:
        if callee.member != "apply":
            raise P4Error(f"a table has no method `{callee.member}`", callee.location)
        if env.frame.kind != "control":
            raise P4Error(f"a table cannot be applied in a {env.frame.kind}", node.location)
        if node.args:
            raise P4Error("`apply` of a table takes no arguments", node.location)
        return ir.TableApply(table.result, node.location, table)

    def _block(
        self,
        instance: ir.ParserInstance | ir.ControlInstance,
        node: ast.CallExpr,
        callee: ast.MemberExpr,
        env: Env,
    ) -> ir.Expr:
        kind = instance.type.kind
        if callee.member != "apply":
            raise P4Error(f"a {kind} has no method `{callee.member}`", callee.location)
        if env.frame.kind != kind:
            raise P4Error(f"a {kind} cannot be applied in a {env.frame.kind}", node.location)
        args = self.arguments(instance.type.params, node.args, env, node.location, instance.name)
        if instance.params:
            by_name = {each.name: each for each in instance.params}
            args = tuple(ir.Argument(by_name[each.param.name], each.value) for each in args)
        return ir.BlockApply(VOID, node.location, instance, args)

    def _method(
        self,
        base: ir.Expr,
        type_: ExternType,
        node: ast.CallExpr,
        callee: ast.MemberExpr,
        env: Env,
        expected: Type | None,
    ) -> ir.Expr:
        methods = type_.find(callee.member)
        if not methods:
            raise P4Error(
                f"extern `{type_}` has no method `{callee.member}`",
                callee.location,
                notes=(("it is declared here", type_.location),),
            )
        method = self._choose(methods, node, f"{type_.name}.{callee.member}", env)
        assert isinstance(method, Method)
        returns = method.returns or VOID
        bindings, args = self._infer(
            method.type_params, method.params, returns, node, env, expected, str(method)
        )
        type_args = self._closed(method.type_params, bindings, node, str(method))
        result = substitute(returns, bindings, self.checker.types.instantiate_name)
        target = base.instance if isinstance(base, ir.InstanceRef) else base
        assert isinstance(target, ir.ExternInstance | ir.Expr)
        call = ir.MethodCall(result, node.location, target, method, type_args, args)
        restrictions.packet_method(call)
        return call

    def _builtin(self, base: ir.Expr, node: ast.CallExpr, callee: ast.MemberExpr) -> ir.Expr:
        name = callee.member
        if name in _SIZES:
            return self._size(base.type, name, node)
        match base.type, name:
            case (HeaderType() | UnionType(), "isValid") | (HeaderType(), "setValid" | "setInvalid"):
                if node.args:
                    raise P4Error(f"`{name}` takes no arguments", node.location)
                if name != "isValid":
                    self.checker.exprs.require_lvalue(base)
                result = BOOL if name == "isValid" else VOID
                return ir.BuiltinCall(result, node.location, ir.Builtin(name), base, 0)
            case (StackType(), "push_front" | "pop_front"):
                return self._push_or_pop(base, node, name)
            case _:
                raise P4Error(f"`{base.type}` has no method `{name}`", callee.location)

    def _push_or_pop(self, base: ir.Expr, node: ast.CallExpr, name: str) -> ir.Expr:
        self.checker.exprs.require_lvalue(base)
        if len(node.args) != 1:
            raise P4Error(f"`{name}` takes one argument, not {len(node.args)}", node.location)
        count = self.checker.exprs.constant_int(node.args[0].value, self.checker.top)
        if count < 0:
            raise P4Error(f"`{name}` by a negative number", node.args[0].location)
        return ir.BuiltinCall(VOID, node.location, ir.Builtin(name), base, count)

    def _size(self, type_: Type, name: str, node: ast.CallExpr) -> ir.Expr:
        if node.args:
            raise P4Error(f"`{name}` takes no arguments", node.location)
        width = _minimum(type_) if name.startswith("min") else width_of(type_)
        if width is None:
            raise P4Error(f"`{type_}` has no size", node.location)
        value = (width + 7) // 8 if name.endswith("Bytes") else width
        from switchagg.p4model.types import INT

        return ir.Literal(INT, node.location, value)

    # ---- arguments

    def arguments(
        self,
        params: Sequence[Parameter],
        args: Sequence[ast.Arg],
        env: Env,
        location: Location,
        name: str,
    ) -> tuple[ir.Argument, ...]:
        """Checks arguments against parameters whose types are all known."""
        matched = match_arguments(params, args, location, name)
        return tuple(self._argument(param, matched.get(param.name), param.type, env) for param in params)

    def _argument(self, param: Parameter, arg: ast.Arg | None, type_: Type, env: Env) -> ir.Argument:
        if arg is None:
            return ir.Argument(param, param.default)
        if isinstance(arg.value, ast.DontCareExpr):
            if param.direction is not Direction.OUT and not param.optional:
                raise P4Error(f"`_` for parameter `{param.name}`, which is not `out`", arg.location)
            return ir.Argument(param, None)
        what = f"parameter `{param.name}`"
        if param.direction in (Direction.OUT, Direction.INOUT):
            target = self.checker.exprs.lvalue(arg.value, env)
            if target.type != type_:
                raise P4Error(
                    f"`{target.type}` for {param.direction} {what}, which needs `{type_}`", arg.value.location
                )
            return ir.Argument(param, target)
        formal = None if isinstance(type_, DontCareType) or has_variables(type_) else type_
        value = self.checker.exprs.value(arg.value, env, formal, what)
        return ir.Argument(param, value)

    def _infer(
        self,
        type_params: Sequence[TypeVar],
        params: Sequence[Parameter],
        returns: Type,
        node: ast.CallExpr,
        env: Env,
        expected: Type | None,
        name: str,
    ) -> tuple[Bindings, tuple[ir.Argument, ...]]:
        """Binds type parameters, from type arguments, arguments and what is expected, and checks
        arguments.
        """
        bindings: Bindings = {}
        if node.type_args:
            if len(node.type_args) != len(type_params):
                raise P4Error(
                    f"`{name}` needs {len(type_params)} type argument(s), not {len(node.type_args)}",
                    node.location,
                )
            for variable, written in zip(type_params, node.type_args, strict=True):
                bound = self.checker.types.resolve(written, env)
                if bound is not DONT_CARE:
                    bindings[variable] = bound
        return bindings, self.infer(
            type_params, params, node.args, env, bindings, node.location, name, returns, expected
        )

    def infer(
        self,
        type_params: Sequence[TypeVar],
        params: Sequence[Parameter],
        given: Sequence[ast.Arg],
        env: Env,
        bindings: Bindings,
        location: Location,
        name: str,
        returns: Type = VOID,
        expected: Type | None = None,
    ) -> tuple[ir.Argument, ...]:
        """Checks arguments, adding to `bindings` what they tell of the type parameters."""
        open_ = frozenset(type_params)
        again = self.checker.types.instantiate_name
        matched = match_arguments(params, given, location, name)
        checked: dict[str, ir.Expr] = {}
        for param in params:
            arg = matched.get(param.name)
            if arg is None or isinstance(arg.value, ast.DontCareExpr):
                continue
            formal = substitute(param.type, bindings, again)
            if not has_variables(formal):
                continue
            expr = self.checker.exprs.check(arg.value, env)
            checked[param.name] = expr
            if not unify(formal, expr.type, bindings, open_):
                raise P4Error(
                    f"`{expr.type}` where `{formal}` is needed for parameter `{param.name}`", arg.location
                )
        if expected is not None and has_variables(substitute(returns, bindings, again)):
            unify(substitute(returns, bindings, again), expected, bindings, open_)
        args = []
        for param in params:
            type_ = substitute(param.type, bindings, again)
            expr_there = checked.get(param.name)
            arg = matched.get(param.name)
            if expr_there is None or arg is None:
                args.append(self._argument(param, arg, type_, env))
                continue
            if param.direction in (Direction.OUT, Direction.INOUT):
                self.checker.exprs.require_lvalue(expr_there)
                if expr_there.type != type_ and not has_variables(type_):
                    raise P4Error(
                        f"`{expr_there.type}` for {param.direction} parameter `{param.name}`, "
                        f"which needs `{type_}`",
                        arg.location,
                    )
                args.append(ir.Argument(param, expr_there))
            elif has_variables(type_) or _same_block(type_, expr_there.type):
                args.append(ir.Argument(param, expr_there))
            else:
                args.append(ir.Argument(param, coerce(expr_there, type_, f"parameter `{param.name}`")))
        return tuple(args)

    def _closed(
        self, type_params: Sequence[TypeVar], bindings: Bindings, node: ast.CallExpr, name: str
    ) -> tuple[Type, ...]:
        closed = []
        for variable in type_params:
            bound = bindings.get(variable)
            if bound is None:
                raise P4Error(
                    f"type argument `{variable}` of `{name}` cannot be found from the arguments: write "
                    f"`{name.rpartition('.')[2]}<...>(...)`",
                    node.location,
                )
            closed.append(bound)
        restrictions.type_arguments(bindings, name, node.location)
        return tuple(closed)


def _same_block(formal: Type, actual: Type) -> bool:
    from switchagg.p4model.types import BlockType, PackageType

    return isinstance(formal, BlockType | PackageType) and isinstance(actual, type(formal))


def _minimum(type_: Type) -> int | None:
    """Bits of a value whose varbits are empty; of a union, of its smallest header."""
    match type_:
        case UnionType():
            widths = [_minimum(each.type) for each in type_.fields]
            return None if None in widths else min((each for each in widths if each is not None), default=0)
        case FieldsType() if has_varbit(type_):
            total = 0
            for each in type_.fields:
                width = _minimum(each.type)
                if width is None:
                    return None
                total += width
            return total
        case _:
            return 0 if has_varbit(type_) else width_of(type_)


def _static_assert(args: tuple[ir.Argument, ...], location: Location) -> ir.Expr:
    check = args[0].value
    if check is None or not is_constant(check):
        raise P4Error("what static_assert checks must be known at compile time", location)
    if isinstance(check, ir.Literal) and not check.value:
        message = args[1].value if len(args) > 1 else None
        text = f": {message.value}" if isinstance(message, ir.Literal) else ""
        raise P4Error(f"static_assert failed{text}", location)
    return ir.Literal(BOOL, location, True)


def accepts(params: Sequence[Parameter], args: Sequence[ast.Arg]) -> bool:
    """Whether the number and the names of arguments fit the parameters."""
    try:
        match_arguments(params, args, Location("", 0, 0), "")
    except P4Error:
        return False
    return True


def match_arguments(
    params: Sequence[Parameter], args: Sequence[ast.Arg], location: Location, name: str
) -> dict[str, ast.Arg]:
    """Arguments by the name of their parameter. Raises `P4Error` for one too many, too few, or of a wrong
    name.
    """
    matched: dict[str, ast.Arg] = {}
    if len(args) > len(params):
        raise P4Error(f"`{name}` takes {len(params)} argument(s), not {len(args)}", location)
    by_name = {each.name for each in params}
    for index, arg in enumerate(args):
        if bool(arg.name) is not bool(args[0].name):
            raise P4Error("either all arguments have names or none has", arg.location)
        target = arg.name or params[index].name
        if target not in by_name:
            raise P4Error(f"`{name}` has no parameter `{target}`", arg.location)
        if target in matched:
            raise P4Error(f"parameter `{target}` has two arguments", arg.location)
        matched[target] = arg
    for param in params:
        if param.name not in matched and param.default is None and not param.optional:
            if not any(arg.name for arg in args):
                required = sum(each.default is None and not each.optional for each in params)
                raise P4Error(f"`{name}` takes {required} argument(s), not {len(args)}", location)
            raise P4Error(f"parameter `{param.name}` of `{name}` has no argument", location)
    return matched
