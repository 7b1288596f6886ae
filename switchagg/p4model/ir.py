"""The typed program: `load()` returns it, the runtime executes it, and this docstring is their contract.

`load()` resolves, checks and *elaborates*: it starts from `main` and evaluates every constructor. A parser or
control with constructor parameters appears once for each instance, with the constants in place. Therefore:

- names are resolved: an expression holds the `Variable`, `Action`, `Table`, ... object itself, and these
  compare by identity; a name in this tree is for messages and for the control plane only;
- every expression has its type; typedefs are gone; type arguments are explicit in types and calls;
- every implicit cast is a `Cast`; values known at compile time are literals. The type `int` remains only in
  arguments of externs whose parameter is generic or `int` itself;
- there is one `Argument` for each parameter, in the order of the parameters; defaults are filled in; a
  missing one (@optional) and `_` for an out parameter have value None;
- operands of arithmetic have equal types; the right one of a shift may have another, and is not negative;
- `a += b` and similar are `Assign(a, a + b)`; variables hold indices of `a` that call something;
- `minSizeInBits()` and similar and the `size` of a stack are literals.

    Program ─ main: PackageInstance ─ args ─ ParserInstance ─ states ─ statements ─ expressions
            │                              └ ControlInstance ─ actions, tables, instances, body
            ├ instances     ExternInstance of the top level (others belong to a parser or control)
            ├ actions       actions of the top level
            └ types, errors, match_kinds

Two `ControlInstance` objects of one control share no node. A `Function` appears once for each list of type
arguments; functions of the top level refer only to their own variables.

Control-plane names. `control_name` is the name of a table, action, extern instance or value set in P4Runtime,
STF and our table API: the path of instances below the control's own name (`MyIngress.sub.table`). @name
replaces the last part, a @name that begins with a dot all of it. `Key.control_name` is @name or the
expression as written, with `.isValid()` as `$valid$`, as in p4c.

Scopes at run time. Variables with `scope` local of a control or parser live for one execution of it
(`apply`); an initializer runs in the order of declaration, before the body or the start state. Bodies of
actions and of an extern instance's abstract methods (Register actions) may refer to variables and
parameters of the enclosing block.

Values at compile time (`Value`), for constructors and table properties: int, bool, str, `EnumLiteral`,
`ErrorLiteral`, tuples of values (from tuples and lists), `StructValue`, instances, and None where missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum, StrEnum
from typing import TypeAlias

from switchagg.p4model import types as ty
from switchagg.p4model.ast import Annotation, Record
from switchagg.p4model.errors import Location
from switchagg.p4model.types import Type

# ---- declarations


class Scope(Enum):
    """The kind of a variable."""

    PARAM = "param"
    """of a parser, control, function or abstract method"""
    ACTION_PARAM = "action_param"
    """with direction NONE: from the table entry; else bound in the table's list of actions or by a call"""
    LOCAL = "local"
    """declared in a body or at the head of a parser or control"""


class Variable(Record):
    """A parameter or local variable. Two of one name are two objects."""

    name: str
    type: Type
    scope: Scope
    location: Location
    direction: ty.Direction = ty.Direction.NONE
    annotations: tuple[Annotation, ...] = ()


class Function(Record):
    """A function of the program, or the body of an extern instance's abstract method."""

    name: str
    params: tuple[Variable, ...]
    returns: Type
    body: Block
    location: Location
    type_args: tuple[Type, ...] = ()


class Declaration(Record):
    """Base of what the control plane has a name for."""

    name: str
    control_name: str
    annotations: tuple[Annotation, ...]
    location: Location


class Action(Declaration):
    """An action. `params` holds the directed parameters first, then those from entries."""

    params: tuple[Variable, ...]
    body: Block


class Key(Record):
    """One field of a table's key. `match_kind` is exact, lpm, ternary, range, optional, selector, ..."""

    expr: Expr
    match_kind: str
    control_name: str
    annotations: tuple[Annotation, ...]
    location: Location


class ActionRef(Record):
    """An action in a table's list. `bound` has an argument for each directed parameter.

    @tableonly and @defaultonly are in `annotations`.
    """

    action: Action
    bound: tuple[Argument, ...]
    annotations: tuple[Annotation, ...]
    location: Location


class ActionCall(Record):
    """An action with all its arguments, directed ones included, for a default action or an entry."""

    action: Action
    args: tuple[Argument, ...]
    location: Location


class Entry(Record):
    """An entry in the source. `keys` has one keyset for each key.

    `priority` is None in const entries, of which the first that matches wins. In others it is a number,
    made up as the language says where none is written; the smaller one wins where the table has
    `largest_priority_wins` false.
    """

    keys: tuple[Keyset, ...]
    call: ActionCall
    priority: int | None
    const: bool
    annotations: tuple[Annotation, ...]
    location: Location


class Table(Declaration):
    """A table. `properties` has the values of those without a field here, such as `implementation`."""

    keys: tuple[Key, ...]
    actions: tuple[ActionRef, ...]
    default: ActionCall | None
    const_default: bool
    entries: tuple[Entry, ...]
    const_entries: bool
    size: int | None
    largest_priority_wins: bool
    priority_delta: int
    properties: Mapping[str, Value]
    result: ty.ApplyResultType


class ValueSet(Declaration):
    """A parser's value set. `element` is the type of its members."""

    element: Type
    size: int


class ExternInstance(Declaration):
    """An extern object. `args` is by parameter name, in order; `methods` are its abstract ones, defined."""

    type: ty.ExternType
    args: Mapping[str, Value]
    constructor: ty.Method
    methods: Mapping[str, Function]


class State(Record):
    """A parser state: statements, then where to go. `accept` and `reject` are no objects, only names."""

    name: str
    body: tuple[Stmt, ...]
    transition: Transition
    annotations: tuple[Annotation, ...]
    location: Location


class Goto(Record):
    """An unconditional transition."""

    state: str
    location: Location


class SelectCase(Record):
    """`keys` has one keyset for each expression of the select."""

    keys: tuple[Keyset, ...]
    state: str
    location: Location


class Select(Record):
    """The first case that matches. Where none does, the parser ends with error.NoMatch."""

    exprs: tuple[Expr, ...]
    cases: tuple[SelectCase, ...]
    location: Location


Transition: TypeAlias = Goto | Select


class _BlockInstance(Declaration):
    """A parser or control with its constructor's arguments. `prologue` declares variables (see module)."""

    type: ty.BlockType
    params: tuple[Variable, ...]
    args: Mapping[str, Value]
    prologue: tuple[Stmt, ...]
    instances: tuple[Instance, ...]


class ParserInstance(_BlockInstance):
    """A parser: value sets, and states by name."""

    value_sets: tuple[ValueSet, ...]
    states: Mapping[str, State]


class ControlInstance(_BlockInstance):
    """A control: actions, tables, and the body of `apply`."""

    actions: tuple[Action, ...]
    tables: tuple[Table, ...]
    body: Block


class PackageInstance(Record):
    """A package: `main` or an argument of it. `args` is by parameter name; an optional one can be None."""

    name: str
    type: ty.PackageType
    args: Mapping[str, Value]
    annotations: tuple[Annotation, ...]
    location: Location


BlockInstance: TypeAlias = ParserInstance | ControlInstance
Instance: TypeAlias = ExternInstance | BlockInstance


class StructValue(Record):
    """A struct or header, valid if it is one, known at compile time."""

    type: Type
    fields: Mapping[str, Value]


Value: TypeAlias = (
    "int | bool | str | EnumLiteral | ErrorLiteral | tuple[Value, ...] | StructValue | ExternInstance | "
    "ParserInstance | ControlInstance | PackageInstance | None"
)


class Program(Record):
    """A checked and elaborated program.

    Attributes:
        path: the source file, as the caller named it.
        architecture: `v1model`, `tna`, ..., from the type of `main`; empty if it is none that we know.
        main: the package instance.
        errors: all members of `error`, in order of declaration, the core library's first.
        match_kinds: all members of `match_kind`, likewise.
        types: headers, structs, enums, ... of the top level by name (no generic ones).
        instances: extern instances of the top level, in order.
        actions: actions of the top level, in order.
        sources: the text of every file that took part, by name, for messages.
    """

    path: str
    architecture: str
    main: PackageInstance
    errors: tuple[str, ...]
    match_kinds: tuple[str, ...]
    types: Mapping[str, Type]
    instances: tuple[ExternInstance, ...]
    actions: tuple[Action, ...]
    sources: Mapping[str, str] = field(default_factory=dict, repr=False)


# ---- expressions


class Expr(Record):
    """Base of expressions. `type` is never a typedef."""

    type: Type
    location: Location


class UnaryOp(StrEnum):
    """`!` takes a bool, `~` a bit or int, `-` a bit (modulo 2^N) or int. Unary `+` is gone."""

    NOT = "!"
    INVERT = "~"
    NEGATE = "-"


class BinaryOp(StrEnum):
    """As P4 writes them. `==` and `!=` also compare headers, structs, stacks, tuples, enums, errors, bools.

    `+ - *` wrap modulo 2^N. `/` and `%` do not occur: they are folded, or shifts and masks.
    `++` has a bit or int as each operand; the type of the result is that of the left one, of both widths.
    """

    ADD = "+"
    SUB = "-"
    MUL = "*"
    DIV = "/"
    MOD = "%"
    SAT_ADD = "|+|"
    SAT_SUB = "|-|"
    BIT_AND = "&"
    BIT_OR = "|"
    BIT_XOR = "^"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"
    CONCAT = "++"
    EQ = "=="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="
    AND = "&&"
    OR = "||"


class Literal(Expr):
    """bit<N>, int<N>, int (int); bool; string. Values are in the range of their type."""

    value: int | bool | str


class EnumLiteral(Expr):
    """A member of an enum. `value` is its number in a serializable enum, its position in another."""

    type: ty.EnumType | ty.SerEnumType
    name: str
    value: int


class ErrorLiteral(Expr):
    """A member of `error`."""

    name: str


class TupleLiteral(Expr):
    """`{a, b}` of a TupleType or ListType. Where a struct or header was expected it is a `StructLiteral`."""

    elements: tuple[Expr, ...]


class StructLiteral(Expr):
    """A struct or a (valid) header; one expression for each field, in the order of the type's fields."""

    elements: tuple[Expr, ...]


class StackLiteral(Expr):
    """`{h1, h2}` where a stack was expected; as many elements as the stack has."""

    elements: tuple[Expr, ...]


class InvalidHeader(Expr):
    """`{#}`: an invalid header, or a union of which no header is valid."""


class VarRef(Expr):
    """A parameter or local variable."""

    variable: Variable


class InstanceRef(Expr):
    """An instance as an argument; a call has its own in `MethodCall.target` or `BlockApply.instance`."""

    instance: Instance | PackageInstance


class This(Expr):
    """`this` in the body of an abstract method: the instance that defines it."""


class FieldAccess(Expr):
    """A field of a header, struct or union; or `hit` and `miss` of a `TableApply`."""

    base: Expr
    name: str


class Index(Expr):
    """An element of a stack, at a constant or computed index; or of a tuple, at a constant one."""

    base: Expr
    index: Expr


class StackNext(Expr):
    """`stack.next`: in parsers."""

    base: Expr


class StackLast(Expr):
    """`stack.last`: in parsers."""

    base: Expr


class StackLastIndex(Expr):
    """`stack.lastIndex`: bit<32>, in parsers."""

    base: Expr


class Slice(Expr):
    """`base[high:low]`, both inclusive and constant: a bit<high-low+1>. Also the target of an assignment."""

    base: Expr
    high: int
    low: int


class Unary(Expr):
    """One operand."""

    op: UnaryOp
    operand: Expr


class Binary(Expr):
    """Two operands, evaluated from left to right; `&&` and `||` stop early."""

    op: BinaryOp
    left: Expr
    right: Expr


class Ternary(Expr):
    """`condition ? yes : no`; one of the two is evaluated."""

    condition: Expr
    yes: Expr
    no: Expr


class Cast(Expr):
    """`operand` as `type`: between bit and int of one width, between widths of one signedness, bit<1> and
    bool, enum and underlying type, `type` and underlying type; and structs, tuples or headers of equal
    shape.
    """

    operand: Expr


class Argument(Record):
    """The argument of a parameter. For out and inout, `value` can be assigned to."""

    param: ty.Parameter | Variable
    value: Expr | None


class FunctionCall(Expr):
    """A call of a function of the program."""

    function: Function
    args: tuple[Argument, ...]


class ExternCall(Expr):
    """A call of an extern function. `params` of `method` still have type variables; arguments have types."""

    method: ty.Method
    type_args: tuple[Type, ...]
    args: tuple[Argument, ...]


class MethodCall(Expr):
    """A call of an extern's method. `target` is an instance or, for packet_in and its like, an expression."""

    target: ExternInstance | Expr
    method: ty.Method
    type_args: tuple[Type, ...]
    args: tuple[Argument, ...]


class Builtin(StrEnum):
    """Methods of headers, unions (`isValid`) and stacks (push and pop, with a constant count)."""

    IS_VALID = "isValid"
    SET_VALID = "setValid"
    SET_INVALID = "setInvalid"
    PUSH_FRONT = "push_front"
    POP_FRONT = "pop_front"


class BuiltinCall(Expr):
    """`base.builtin()`; `count` is for push_front and pop_front, 0 elsewhere."""

    builtin: Builtin
    base: Expr
    count: int


class DirectActionCall(Expr):
    """`action(args);` in a body: all parameters have arguments."""

    action: Action
    args: tuple[Argument, ...]


class TableApply(Expr):
    """`table.apply()`"""

    table: Table


class BlockApply(Expr):
    """`instance.apply(args)` of a control (in a control) or parser (in a parser)."""

    instance: BlockInstance
    args: tuple[Argument, ...]


# ---- keysets: in select, entries and value sets


class ExactSet(Record):
    """One value."""

    value: Expr
    location: Location


class MaskSet(Record):
    """`value &&& mask`"""

    value: Expr
    mask: Expr
    location: Location


class RangeSet(Record):
    """`low .. high`, both inclusive; signed where the type is."""

    low: Expr
    high: Expr
    location: Location


class AnySet(Record):
    """`_` or `default`"""

    location: Location


class ValueSetRef(Record):
    """A value set. If the select has several expressions, it stands for all of them, alone in `keys`."""

    value_set: ValueSet
    location: Location


Keyset: TypeAlias = ExactSet | MaskSet | RangeSet | AnySet | ValueSetRef


# ---- statements


class Stmt(Record):
    """Base of statements."""

    location: Location


class Declare(Stmt):
    """A local variable. Without `init` its value is undefined; headers in it are invalid."""

    variable: Variable
    init: Expr | None


class Assign(Stmt):
    """`target = value`: of equal types."""

    target: Expr
    value: Expr


class CallStmt(Stmt):
    """A call for its effect; what it returns is dropped."""

    call: Expr


class Block(Stmt):
    """`{ ... }`; variables declared in it end with it."""

    body: tuple[Stmt, ...]
    annotations: tuple[Annotation, ...] = ()


class If(Stmt):
    """`condition` is a bool. In parsers too."""

    condition: Expr
    then: Stmt
    orelse: Stmt | None


class Return(Stmt):
    """Leaves the function, action, or control's apply."""

    value: Expr | None


class Exit(Stmt):
    """Leaves all controls and actions that run; out parameters are copied back."""


class ActionCase(Record):
    """`actions` is empty for `default`. Labels that fell through are joined into one case."""

    actions: tuple[Action, ...]
    default: bool
    body: Stmt | None


class ActionSwitch(Stmt):
    """`switch (table.apply().action_run)`"""

    apply: TableApply
    cases: tuple[ActionCase, ...]


class ValueCase(Record):
    """`values` are literals; empty with `default`. Labels that fell through are joined into one case."""

    values: tuple[Expr, ...]
    default: bool
    body: Stmt | None


class ValueSwitch(Stmt):
    """`switch (expression)`; nothing happens where no case matches."""

    subject: Expr
    cases: tuple[ValueCase, ...]


class For(Stmt):
    """`for (init; condition; update) body`; `condition` is None for none."""

    init: tuple[Stmt, ...]
    condition: Expr | None
    update: tuple[Stmt, ...]
    body: Stmt


class ForRange(Stmt):
    """`for (T v in low .. high) body`: both inclusive; no round where low > high."""

    variable: Variable
    low: Expr
    high: Expr
    body: Stmt


class ForEach(Stmt):
    """`for (T v in collection) body`: over a stack, tuple or list."""

    variable: Variable
    collection: Expr
    body: Stmt


class Break(Stmt):
    """Leaves the innermost loop."""


class Continue(Stmt):
    """Goes on with the innermost loop's next round."""


class Empty(Stmt):
    """`;`"""
