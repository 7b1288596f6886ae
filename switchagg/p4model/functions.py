"""Checking functions, actions, and the methods that an instance defines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from switchagg.p4model import ast, ir, restrictions
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.names import control_name
from switchagg.p4model.symbols import Env, Frame, NamedType, Overloads, UserFunction
from switchagg.p4model.types import Direction, ExternType, Method, Parameter, Type, TypeVar, VoidType

if TYPE_CHECKING:
    from switchagg.p4model.check import Checker


class Functions:
    """Checks bodies that are called."""

    def __init__(self, checker: Checker) -> None:
        self.checker = checker

    # ---- functions

    def declare(self, decl: ast.FunctionDecl, env: Env) -> None:
        """Declares a function. One without type parameters is checked now, another one once as it is."""
        inner = env.snapshot().child()
        variables = self.checker.types.type_variables(decl.type_params, inner)
        params = self.checker.types.parameters(decl.params, inner)
        for each in params:
            restrictions.own_parameter(each, "function")
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
            if not args or isinstance(args[0], TypeVar):
                raise
            raise P4Error(
                error.reason,
                error.location,
                notes=(*error.notes, ("in the function as called here", location)),
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
        block = ir.Block(
            decl.body.location,
            self.checker.statements.body(decl.body.body, inner.child()),
            decl.body.annotations,
        )
        if not isinstance(returns, VoidType) and not _returns(block):
            raise P4Error(f"function `{decl.name}` can end without a `return`", decl.location)
        return ir.Function(decl.name, variables, returns, block, decl.location, args)

    # ---- abstract methods

    def methods(
        self, type_: ExternType, body: Sequence[ast.Decl] | None, name: str, env: Env, location: Location
    ) -> dict[str, ir.Function]:
        """The methods that an instance's `= { ... }` defines; all abstract ones, and no others."""
        abstract = {each.name: each for each in type_.methods if each.abstract}
        made: dict[str, ir.Function] = {}
        for decl in body or ():
            if not isinstance(decl, ast.FunctionDecl):
                raise P4Error("only methods can be defined here", decl.location)
            method = abstract.get(decl.name)
            if method is None:
                raise P4Error(
                    f"extern `{type_}` has no abstract method `{decl.name}`",
                    decl.location,
                    notes=(("it is declared here", type_.location),),
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
                raise P4Error(
                    f"`{name}` does not define the abstract method `{missing}` of `{type_}`",
                    location,
                    notes=(("it is declared here", abstract[missing].location),),
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
            restrictions.own_parameter(each, "action")
            if each.direction is not Direction.NONE and directionless:
                raise P4Error(
                    "parameters with a direction come before those from the control plane", each.location
                )
            directionless = directionless or each.direction is Direction.NONE
        variables = declare_parameters(params, inner, ir.Scope.ACTION_PARAM)
        body = ir.Block(
            decl.body.location,
            self.checker.statements.body(decl.body.body, inner.child()),
            decl.body.annotations,
        )
        name = control_name(decl.name, decl.annotations, env.frame.path)
        action = ir.Action(decl.name, name, variables, body, decl.annotations, decl.location)
        self.checker.action_params[action] = params
        return action


def declare_parameters(params: Sequence[Parameter], env: Env, scope: ir.Scope) -> tuple[ir.Variable, ...]:
    """Variables for the parameters of a body."""
    variables = []
    for each in params:
        variable = ir.Variable(each.name, each.type, scope, each.location, each.direction, each.annotations)
        env.declare(each.name, variable)
        variables.append(variable)
    return tuple(variables)


def _check_signature(made: ir.Function, method: Method, decl: ast.FunctionDecl) -> None:
    wanted_params = [each for each in method.params if not each.optional]
    if len(made.params) > len(wanted_params):
        wanted_params = list(method.params)
    same = len(made.params) == len(wanted_params) and made.returns == method.returns
    if same:
        for mine, theirs in zip(made.params, wanted_params, strict=True):
            same = same and mine.direction == theirs.direction and mine.type == theirs.type
    if not same:
        wanted = ", ".join(f"{each.direction} {each.type} {each.name}".strip() for each in method.params)
        raise P4Error(
            f"method `{decl.name}` must be declared as `{method.returns} {method.name}({wanted})`",
            decl.location,
            notes=(("as here", method.location),),
        )


def _returns(statement: ir.Stmt | None) -> bool:
    """Whether every way through ends with a return."""
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
