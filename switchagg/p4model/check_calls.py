"""Checks calls and what is called: functions, actions, and the methods that an extern instance defines."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from switchagg.p4model import ast, ir
from switchagg.p4model import types as ty
from switchagg.p4model.ast import control_name
from switchagg.p4model.constants import is_constant
from switchagg.p4model.errors import Location, P4Error, misused
from switchagg.p4model.operators import coerce
from switchagg.p4model.symbols import Env, Frame, NamedType, Overloads, UserFunction
from switchagg.p4model.types import Type, has_varbit, has_variables, substitute, unify, width_of

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
                return ir.DirectActionCall(ty.VOID, node.location, symbol, linked(symbol.params, args))
            case Overloads():
                function = self._choose(symbol.members, node, callee.name, env)
                if isinstance(function, UserFunction):
                    return self._function(function, node, env, expected)
                return self._extern_function(function, node, env, expected)
            case _:
                raise misused(f"`{callee.name}` cannot be called", callee.location, symbol.location)

    def _choose(
        self, members: Sequence[UserFunction | ty.Method], node: ast.CallExpr, name: str, env: Env
    ) -> UserFunction | ty.Method:
        fitting = [each for each in members if accepts(each.params, node.args)]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            if len(members) == 1:
                match_arguments(members[0].params, node.args, node.location, name)
            raise P4Error(
                f"no `{name}` takes these arguments",
                node.location,
                *(("this one does not", each.location) for each in members),
            )
        fitting = [each for each in fitting if self._suits(each, node, env)] or fitting
        exact = [each for each in fitting if len(each.params) == len(node.args)] or fitting
        if len(exact) == 1:
            return exact[0]
        raise P4Error(
            f"more than one `{name}` takes these arguments",
            node.location,
            *(("this one does", each.location) for each in fitting),
        )

    def _suits(self, function: UserFunction | ty.Method, node: ast.CallExpr, env: Env) -> bool:
        """True if arguments have the types of parameters, as far as these are known."""
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
        _, type_args, args = self._infer(function, function.returns, node, env, expected)
        made = self.checker.functions.instantiate(function, type_args, node.location)
        return ir.FunctionCall(made.returns, node.location, made, linked(made.params, args))

    def _extern_function(
        self, method: ty.Method, node: ast.CallExpr, env: Env, expected: Type | None
    ) -> ir.Expr:
        type_, type_args, args = self._infer(method, method.returns or ty.VOID, node, env, expected)
        if method.name == "verify" and env.frame.kind != "parser":
            raise P4Error("`verify` can only be called in a parser", node.location)
        if method.name == "static_assert":
            return _static_assert(args, node.location)
        return ir.ExternCall(type_, node.location, method, type_args, args)

    # ---- members

    def _member(self, node: ast.CallExpr, callee: ast.MemberExpr, env: Env, expected: Type | None) -> ir.Expr:
        if isinstance(callee.base, ast.TypeExpr):
            return self._on_type(node, callee, callee.base, env)
        if isinstance(callee.base, ast.PathExpr):
            symbol = env.lookup(callee.base.name, top=callee.base.absolute)
            if isinstance(symbol, ir.Table):
                return self._table(symbol, node, callee, env)
            if isinstance(symbol, ir.BlockInstance):
                return self._block(symbol, node, callee, env)
        base = self.checker.exprs.check(callee.base, env)
        match base.type:
            case ty.ExternType():
                return self._method(base, base.type, node, callee, env, expected)
            case ty.FieldsType() | ty.StackType():
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
        self, instance: ir.BlockInstance, node: ast.CallExpr, callee: ast.MemberExpr, env: Env
    ) -> ir.Expr:
        kind = instance.type.kind
        if callee.member != "apply":
            raise P4Error(f"a {kind} has no method `{callee.member}`", callee.location)
        if env.frame.kind != kind:
            raise P4Error(f"a {kind} cannot be applied in a {env.frame.kind}", node.location)
        args = self.arguments(instance.type.params, node.args, env, node.location, instance.name)
        if instance.params:
            args = linked(instance.params, args)
        return ir.BlockApply(ty.VOID, node.location, instance, args)

    def _method(
        self,
        base: ir.Expr,
        type_: ty.ExternType,
        node: ast.CallExpr,
        callee: ast.MemberExpr,
        env: Env,
        expected: Type | None,
    ) -> ir.Expr:
        methods = type_.find(callee.member)
        if not methods:
            raise misused(
                f"extern `{type_}` has no method `{callee.member}`", callee.location, type_.location
            )
        method = self._choose(methods, node, f"{type_.name}.{callee.member}", env)
        assert isinstance(method, ty.Method)
        result, type_args, args = self._infer(method, method.returns or ty.VOID, node, env, expected)
        target = base.instance if isinstance(base, ir.InstanceRef) else base
        assert isinstance(target, ir.ExternInstance | ir.Expr)
        call = ir.MethodCall(result, node.location, target, method, type_args, args)
        check_packet_method(call)
        return call

    def _builtin(self, base: ir.Expr, node: ast.CallExpr, callee: ast.MemberExpr) -> ir.Expr:
        name = callee.member
        if name in _SIZES:
            return self._size(base.type, name, node)
        match base.type, name:
            case (ty.HeaderType() | ty.UnionType(), "isValid") | (ty.HeaderType(), "setValid" | "setInvalid"):
                if node.args:
                    raise P4Error(f"`{name}` takes no arguments", node.location)
                if name != "isValid":
                    self.checker.exprs.require_lvalue(base)
                result = ty.BOOL if name == "isValid" else ty.VOID
                return ir.BuiltinCall(result, node.location, ir.Builtin(name), base, 0)
            case (ty.StackType(), "push_front" | "pop_front"):
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
        return ir.BuiltinCall(ty.VOID, node.location, ir.Builtin(name), base, count)

    def _size(self, type_: Type, name: str, node: ast.CallExpr) -> ir.Expr:
        if node.args:
            raise P4Error(f"`{name}` takes no arguments", node.location)
        width = _minimum(type_) if name.startswith("min") else width_of(type_)
        if width is None:
            raise P4Error(f"`{type_}` has no size", node.location)
        value = (width + 7) // 8 if name.endswith("Bytes") else width
        return ir.Literal(ty.INT, node.location, value)

    # ---- arguments

    def arguments(
        self, params: Sequence[ty.Parameter], args: Sequence[ast.Arg], env: Env, location: Location, name: str
    ) -> tuple[ir.Argument, ...]:
        """Checks arguments against parameters whose types are all known."""
        matched = match_arguments(params, args, location, name)
        return tuple(self._argument(param, matched.get(param.name), param.type, env) for param in params)

    def _argument(self, param: ty.Parameter, arg: ast.Arg | None, type_: Type, env: Env) -> ir.Argument:
        if arg is None:
            return ir.Argument(param, param.default)
        if isinstance(arg.value, ast.DontCareExpr):
            if param.direction is not ty.Direction.OUT and not param.optional:
                raise P4Error(f"`_` for parameter `{param.name}`, which is not `out`", arg.location)
            return ir.Argument(param, None)
        what = f"parameter `{param.name}`"
        if param.direction in (ty.Direction.OUT, ty.Direction.INOUT):
            target = self.checker.exprs.lvalue(arg.value, env)
            if target.type != type_:
                raise P4Error(
                    f"`{target.type}` for {param.direction} {what}, which needs `{type_}`", arg.value.location
                )
            return ir.Argument(param, target)
        formal = None if isinstance(type_, ty.DontCareType) or has_variables(type_) else type_
        value = self.checker.exprs.value(arg.value, env, formal, what)
        return ir.Argument(param, value)

    def _infer(
        self,
        callee: UserFunction | ty.Method,
        returns: Type,
        node: ast.CallExpr,
        env: Env,
        expected: Type | None,
    ) -> tuple[Type, tuple[Type, ...], tuple[ir.Argument, ...]]:
        """The type of the result, all type arguments, and the checked arguments."""
        name = str(callee) if isinstance(callee, ty.Method) else callee.name
        bindings: ty.Bindings = {}
        if node.type_args:
            if len(node.type_args) != len(callee.type_params):
                raise P4Error(
                    f"`{name}` needs {len(callee.type_params)} type argument(s), not {len(node.type_args)}",
                    node.location,
                )
            for variable, written in zip(callee.type_params, node.type_args, strict=True):
                bound = self.checker.types.resolve(written, env)
                if bound is not ty.DONT_CARE:
                    bindings[variable] = bound
        variables, params = callee.type_params, callee.params
        args = self.infer(variables, params, node.args, env, bindings, node.location, name, returns, expected)
        for variable in variables:
            if variable not in bindings:
                raise P4Error(
                    f"type argument `{variable}` of `{name}` cannot be found from the arguments: write "
                    f"`{name.rpartition('.')[2]}<...>(...)`",
                    node.location,
                )
        check_type_arguments(bindings, name, node.location)
        result = substitute(returns, bindings, self.checker.types.instantiate_name)
        return result, tuple(bindings[each] for each in variables), args

    def infer(
        self,
        type_params: Sequence[ty.TypeVar],
        params: Sequence[ty.Parameter],
        given: Sequence[ast.Arg],
        env: Env,
        bindings: ty.Bindings,
        location: Location,
        name: str,
        returns: Type = ty.VOID,
        expected: Type | None = None,
    ) -> tuple[ir.Argument, ...]:
        """Checks arguments and binds the type parameters that their types determine."""
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
            if param.direction in (ty.Direction.OUT, ty.Direction.INOUT):
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


def linked(params: Sequence[ir.Variable], args: Sequence[ir.Argument]) -> tuple[ir.Argument, ...]:
    """The arguments as those of the variables that stand for the parameters in a body."""
    by_name = {each.name: each for each in params}
    return tuple(ir.Argument(by_name[each.param.name], each.value) for each in args)


def _same_block(formal: Type, actual: Type) -> bool:
    return isinstance(formal, ty.BlockType | ty.PackageType) and isinstance(actual, type(formal))


def _minimum(type_: Type) -> int | None:
    """Bits of a value whose varbits are empty; of a union, of its smallest header."""
    match type_:
        case ty.UnionType():
            return ty.total(functools.partial(min, default=0), [_minimum(each.type) for each in type_.fields])
        case ty.FieldsType() if has_varbit(type_):
            return ty.total(sum, [_minimum(each.type) for each in type_.fields])
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
    return ir.Literal(ty.BOOL, location, True)


def accepts(params: Sequence[ty.Parameter], args: Sequence[ast.Arg]) -> bool:
    """True if the number and the names of arguments fit the parameters."""
    try:
        match_arguments(params, args, Location("", 0, 0), "")
    except P4Error:
        return False
    return True


def match_arguments(
    params: Sequence[ty.Parameter], args: Sequence[ast.Arg], location: Location, name: str
) -> dict[str, ast.Arg]:
    """Arguments by parameter name. Raises `P4Error` for a wrong number of arguments or a wrong name."""
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


class Functions:
    """Checks bodies that are called."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    # ---- functions

    def declare(self, decl: ast.FunctionDecl, env: Env) -> None:
        """Declares a function. A generic one is checked once with its type parameters left open."""
        inner = env.snapshot().child()
        variables = self.checker.types.type_variables(decl.type_params, inner)
        params = self.checker.types.parameters(decl.params, inner)
        for each in params:
            check_own_parameter(each, "function")
        returns = self.checker.types.resolve(decl.returns, inner)
        function = UserFunction(decl, env.snapshot(), variables, params, returns)
        self.instantiate(function, variables, decl.location)
        env.declare(decl.name, Overloads([function]))

    def instantiate(self, function: UserFunction, args: tuple[Type, ...], location: Location) -> ir.Function:
        """The function for these type arguments: the same object for the same ones."""
        there = function.cache.get(args)
        if there is not None:
            return there
        frame = Frame("function")
        env = function.env.child(frame)
        for name, arg in zip(function.decl.type_params, args, strict=True):
            env.declare(name.text, NamedType(arg, name.location))
        try:
            made = self.body(function.decl, env, args)
        except P4Error as error:
            if not args or isinstance(args[0], ty.TypeVar):
                raise
            raise P4Error(
                error.reason, error.location, *error.notes, ("in the function as called here", location)
            ) from None
        function.cache[args] = made
        return made

    def body(self, decl: ast.FunctionDecl, env: Env, args: tuple[Type, ...] = ()) -> ir.Function:
        """A function in an environment whose frame is its own."""
        params = self.checker.types.parameters(decl.params, env)
        returns = self.checker.types.resolve(decl.returns, env)
        env.frame.returns = returns
        inner = env.child()
        variables = declare_parameters(params, inner, ir.Scope.PARAM)
        block = self.checker.statements.block(decl.body, inner)
        if not isinstance(returns, ty.VoidType) and not _returns(block):
            raise P4Error(f"function `{decl.name}` can end without a `return`", decl.location)
        return ir.Function(decl.name, variables, returns, block, decl.location, args)

    # ---- abstract methods

    def methods(
        self, type_: ty.ExternType, body: Sequence[ast.Decl] | None, name: str, env: Env, location: Location
    ) -> dict[str, ir.Function]:
        """The methods in an instance's `= { ... }`: every abstract one must be there, and no other."""
        abstract = {each.name: each for each in type_.methods if each.abstract}
        made: dict[str, ir.Function] = {}
        for decl in body or ():
            if not isinstance(decl, ast.FunctionDecl):
                raise P4Error("only methods can be defined here", decl.location)
            method = abstract.get(decl.name)
            if method is None:
                raise misused(
                    f"extern `{type_}` has no abstract method `{decl.name}`", decl.location, type_.location
                )
            if decl.name in made:
                raise P4Error(f"method `{decl.name}` is defined twice", decl.location)
            block = env.frame if env.frame.kind in ("parser", "control") else None
            inner = env.child(Frame("method", env.frame.path, owner=type_, block=block))
            made[decl.name] = self.body(decl, inner)
            _check_signature(made[decl.name], method, decl)
        for missing in abstract.keys() - made.keys():
            optional = any(note.name == "optional" for note in abstract[missing].annotations)
            if not optional:
                raise misused(
                    f"`{name}` does not define the abstract method `{missing}` of `{type_}`",
                    location,
                    abstract[missing].location,
                )
        return made

    # ---- actions

    def action(self, decl: ast.ActionDecl, env: Env) -> ir.Action:
        """The typed action."""
        block = env.frame if env.frame.kind == "control" else None
        inner = env.child(Frame("action", env.frame.path, block=block))
        params = self.checker.types.parameters(decl.params, inner)
        directionless = False
        for each in params:
            check_own_parameter(each, "action")
            if each.direction is not ty.Direction.NONE and directionless:
                raise P4Error(
                    "parameters with a direction come before those from the control plane", each.location
                )
            directionless = directionless or each.direction is ty.Direction.NONE
        variables = declare_parameters(params, inner, ir.Scope.ACTION_PARAM)
        body = self.checker.statements.block(decl.body, inner)
        name = control_name(decl.name, decl.annotations, env.frame.path)
        action = ir.Action(decl.name, name, decl.annotations, decl.location, variables, body)
        self.checker.action_params[action] = params
        return action


def declare_parameters(params: Sequence[ty.Parameter], env: Env, scope: ir.Scope) -> tuple[ir.Variable, ...]:
    """Variables for the parameters of a body."""
    variables = tuple(
        ir.Variable(each.name, each.type, scope, each.location, each.direction, each.annotations)
        for each in params
    )
    for variable in variables:
        env.declare(variable.name, variable)
    return variables


def _check_signature(made: ir.Function, method: ty.Method, decl: ast.FunctionDecl) -> None:
    wanted_params = [each for each in method.params if not each.optional]
    if len(made.params) > len(wanted_params):
        wanted_params = list(method.params)
    mine = [(each.direction, each.type) for each in made.params]
    theirs = [(each.direction, each.type) for each in wanted_params]
    if mine != theirs or made.returns != method.returns:
        wanted = ", ".join(f"{each.direction} {each.type} {each.name}".strip() for each in method.params)
        raise P4Error(
            f"method `{decl.name}` must be declared as `{method.returns} {method.name}({wanted})`",
            decl.location,
            ("as here", method.location),
        )


def _returns(statement: ir.Stmt | None) -> bool:
    """True if every path ends with a return."""
    match statement:
        case ir.Return() | ir.Exit():
            return True
        case ir.Block(body=body):
            return any(map(_returns, body))
        case ir.If():
            return _returns(statement.then) and _returns(statement.orelse)
        case ir.ValueSwitch() | ir.ActionSwitch():
            complete = any(case.default for case in statement.cases)
            return complete and all(_returns(case.body) for case in statement.cases if case.body is not None)
        case _:
            return False


def check_own_parameter(param: ty.Parameter, kind: str) -> None:
    """Raises `P4Error` for a parameter that a function or action cannot have."""
    if param.optional:
        raise P4Error(f"parameter `{param.name}` of a {kind} cannot be @optional", param.location)
    if kind == "action" and isinstance(
        param.type, ty.InfIntType | ty.StringType | ty.ExternType | ty.BlockType
    ):
        raise P4Error(f"a parameter of an action cannot be of type `{param.type}`", param.location)


def check_type_arguments(bindings: Mapping[ty.TypeVar, Type], name: str, location: Location) -> None:
    """Raises `P4Error` for a type that cannot be a type argument of a call."""
    for variable, bound in bindings.items():
        if isinstance(bound, ty.VoidType | ty.BlockType | ty.PackageType):
            raise P4Error(f"type argument `{variable}` of `{name}` cannot be `{bound}`", location)
        if has_plain_int(bound):
            raise P4Error(
                f"type argument `{variable}` of `{name}` has no width: write a number as in 8w1", location
            )


def has_plain_int(type_: Type) -> bool:
    """True if `int` occurs in a type."""
    match type_:
        case ty.InfIntType():
            return True
        case ty.TupleType(elements):
            return any(map(has_plain_int, elements))
        case ty.ListType(element):
            return has_plain_int(element)
        case ty.StructType(name=""):
            return any(has_plain_int(each.type) for each in type_.fields)
        case _:
            return False


def check_packet_method(call: ir.MethodCall) -> None:
    """Raises `P4Error` for an argument that packet_in or packet_out does not take."""
    owner, name = call.method.owner, call.method.name
    first = call.args[0].value if call.args else None
    if (owner, name) == ("packet_in", "extract"):
        if first is None:
            return
        if not isinstance(first.type, ty.HeaderType):
            raise P4Error(f"`extract` takes a header, not `{first.type}`", first.location)
        varbits = sum(isinstance(each.type, ty.VarbitType) for each in first.type.fields)
        if len(call.args) == 1 and varbits:
            raise P4Error(f"`{first.type}` has a varbit: `extract` needs its length too", first.location)
        if len(call.args) == 2 and not varbits:
            raise P4Error(f"`{first.type}` has no varbit whose length could be given", first.location)
    elif (owner, name) == ("packet_in", "lookahead"):
        if width_of(call.type) is None or has_varbit(call.type):
            raise P4Error(f"`lookahead` needs a type of fixed size, not `{call.type}`", call.location)
    elif (owner, name) == ("packet_out", "emit") and first is not None and not _emittable(first.type):
        raise P4Error(f"`emit` takes headers, not `{first.type}`", first.location)


def _emittable(type_: Type) -> bool:
    if isinstance(type_, ty.StructType):
        return all(_emittable(each.type) for each in type_.fields)
    return isinstance(type_, ty.HeaderType | ty.StackType | ty.UnionType)
