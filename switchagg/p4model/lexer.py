"""From characters to the tokens of grammar.lark, with all that an LALR(1) grammar of P4 needs to be told.

`scan` finds words, numbers, strings and marks, and drops blanks and comments. `classify` tells them apart
by their neighbours and by the names declared before them:

    NAME or TYPE       `(a) - b` is a cast only if `a` is a type, so types are known by declaration, with the
                       scopes of braces and of type parameters
    ARGS_OPEN or LT    a `<` opens type arguments after a generic name
    `>` `>`            is a shift only outside type arguments
    keywords           apply, key, actions, entries, state, type, priority and list are names elsewhere
    annotations        become one token each, so that anything can stand in them
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lark import Token
from lark.lexer import Lexer

from switchagg.p4model.ast import Annotation
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.preprocess import Line
from switchagg.p4model.types import MAX_WIDTH

_SCANNER: Final = re.compile(
    r"""
      (?P<blank>[ \t\r\f\v]+|//.*|/\*.*?\*/)
    |
    (?P<number>[0-9]+[ws]0[xX][0-9a-fA-F_]+|[0-9]+[ws]0[dD][0-9_]+|[0-9]+[ws]0[oO][0-7_]+|[0-9]+[ws]0[bB][01_]+
        |[0-9]+[ws][0-9][0-9_]*|0[xX][0-9a-fA-F_]+|0[dD][0-9_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<string>"(?:[^"\\\n]|\\.)*")
    | (?P<mark>\{\#\}|&&&|\.\.\.|\.\.|<<=|\|\+\|=|\|-\|=|\|\+\||\|-\||<<|&&|\|\||==|!=|<=|>=|\+\+
        |\+=|\+:|-=|\*=|/=|%=|&=|\|=|\^=|[-+*/%&|^~!<>=(){}\[\];:,.?@])
    """,
    re.VERBOSE,
)

_MAX_NUMBER: Final = 3500  # characters: in no base more than `constants.MAX_BITS`

MARKS: Final = {
    "{#}": "INVALID", "&&&": "_MASK", "...": "DOTS", "..": "_RANGE", "|+|": "SAT_ADD", "|-|": "SAT_SUB",
    "<<": "SHL", "&&": "AND", "||": "OR", "==": "EQ", "!=": "NE", "<=": "LE", ">=": "GE", "++": "CONCAT",
    "+": "PLUS", "-": "MINUS", "*": "STAR", "/": "SLASH", "%": "PERCENT", "&": "BIT_AND", "|": "BIT_OR",
    "^": "BIT_XOR", "~": "COMPLEMENT", "!": "NOT", "<": "LT", ">": "GT", "=": "_ASSIGN", "(": "_LPAR", ")":
    "_RPAR", "{": "_LBRACE", "}": "_RBRACE", "[": "_LBRACKET", "]": "_RBRACKET", ";": "_SEMI", ":": "COLON",
    ",": "_COMMA", ".": "_DOT", "+:": "PLUS_COLON", "?": "QUESTION", ">>": "SHR",
}  # fmt: skip
MARKS.update(
    {f"{each}=": "ASSIGN_OP" for each in ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "|+|", "|-|")}
)

KEYWORDS: Final = {
    "abstract": "ABSTRACT", "action": "_ACTION", "bool": "BOOL", "bit": "BIT", "break": "BREAK", "const":
    "_CONST", "continue": "CONTINUE", "control": "CONTROL", "default": "DEFAULT", "else": "_ELSE", "enum":
    "_ENUM", "error": "ERROR", "exit": "EXIT", "extern": "_EXTERN", "false": "FALSE", "for": "FOR",
    "header": "HEADER", "header_union": "HEADER_UNION", "if": "IF", "in": "IN", "inout": "INOUT", "int":
    "INT", "match_kind": "MATCH_KIND", "out": "OUT", "parser": "PARSER", "package": "_PACKAGE", "return":
    "RETURN", "select": "_SELECT", "string": "STRING", "struct": "STRUCT", "switch": "SWITCH", "table":
    "_TABLE", "this": "THIS", "transition": "TRANSITION", "true": "TRUE", "tuple": "TUPLE", "typedef":
    "TYPEDEF", "varbit": "VARBIT", "value_set": "_VALUE_SET", "void": "VOID", "_": "DONT_CARE",
}  # fmt: skip
SOFT_KEYWORDS: Final = {
    "apply": "_APPLY", "key": "KEY", "actions": "ACTIONS", "entries": "ENTRIES", "state": "_STATE",
    "type": "TYPE_KEYWORD", "priority": "_PRIORITY", "list": "LIST",
}  # fmt: skip


class P4Token(Token):
    """A token with its place. `annotation` only in an ANNOTATION token."""

    location: Location
    annotation: Annotation | None


def make_token(kind: str, text: str, location: Location, annotation: Annotation | None = None) -> P4Token:
    """A token of this kind of the grammar."""
    token = P4Token(kind, text)
    token.location = location
    token.annotation = annotation
    return token


@dataclass(slots=True, eq=False)
class Raw:
    """A token before it is classified. `kind` is word, number, string or mark."""

    kind: str
    text: str
    line: Line
    offset: int

    @property
    def location(self) -> Location:
        return self.line.location(self.offset)


def scan(lines: list[Line]) -> list[Raw]:
    """The tokens of the text. Raises `P4Error` for a character that no token begins with."""
    tokens: list[Raw] = []
    match = _SCANNER.match
    for line in lines:
        text, at = line.text, 0
        while at < len(text):
            found = match(text, at)
            if found is None:
                string = "this string does not end on its line"
                reason = string if text[at] == '"' else f"unexpected character {text[at]!r}"
                raise P4Error(reason, line.location(at))
            kind = found.lastgroup
            assert kind is not None
            if kind != "blank":
                tokens.append(Raw(kind, found[0], line, at))
                if kind == "number":
                    _check_size(found[0], line.location(at))
                _check_number(tokens, found[0], kind, line, at)
            at = found.end()
    return tokens


def _check_size(text: str, location: Location) -> None:
    """Raises `P4Error` for a number that is longer, or wider, than the model supports."""
    width = re.match(r"([0-9]+)[ws]", text)
    if len(text) > _MAX_NUMBER:
        raise P4Error(f"a number of {len(text)} characters; accepted: up to {_MAX_NUMBER}", location)
    if width and int(width[1]) > MAX_WIDTH:
        raise P4Error(f"{text} is wider than the {MAX_WIDTH} bits supported", location)


def _check_number(tokens: list[Raw], text: str, kind: str, line: Line, at: int) -> None:
    if kind == "word" and len(tokens) > 1:
        before = tokens[-2]
        if before.kind == "number" and before.line is line and before.offset + len(before.text) == at:
            raise P4Error(f"{before.text}{text} is no number", before.location)


_TEXTS = {"name", "deprecated"}
_ESCAPE = re.compile(r"\\(.)")


def annotate(location: Location, name: str, body: Sequence[Raw] | None, *, structured: bool) -> Annotation:
    """An annotation with this body, read as values or as `key = value` pairs if it is a list of those."""
    if body is None:
        return Annotation(location, name, None, (), (), structured)
    values: list[int | str | bool] = []
    pairs: list[tuple[str, int | str | bool]] = []
    # The tokens with a blank between two, as p4c prints an annotation that it does not know.
    text = " ".join(each.text for each in body)
    groups = itertools.groupby(body, lambda token: token.text == ",")
    for part in (list(group) for comma, group in groups if not comma):
        paired = len(part) > 2 and part[0].kind == "word" and part[1].text == "="
        value = _value(part[2:] if paired else part)
        if value is None:
            values, pairs = [], []
            break
        if paired:
            pairs.append((part[0].text, value))
        else:
            values.append(value)
    if name in _TEXTS and not (len(values) == 1 and isinstance(values[0], str)):
        raise P4Error(f'@{name} takes one string, as in @{name}("...")', location)
    return Annotation(location, name, text, tuple(values), tuple(pairs), structured)


def _value(tokens: Sequence[Raw]) -> int | str | bool | None:
    if all(each.kind == "string" or each.text == "++" for each in tokens):
        tokens = [each for each in tokens if each.kind == "string"]
        return "".join(unquote(each.text) for each in tokens)
    negative = tokens[0].text == "-" and len(tokens) == 2
    token = tokens[-1]
    if token.kind == "number" and (negative or len(tokens) == 1):
        value = number(token.text)[0]
        return -value if negative else value
    if len(tokens) == 1 and token.text in ("true", "false"):
        return token.text == "true"
    return None


def unquote(text: str) -> str:
    """The value of a string literal with its quotes."""
    return _ESCAPE.sub(lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), text[1:-1])


def number(text: str) -> tuple[int, int, bool]:
    """The value, width (0 without a prefix) and signedness of a number as P4 writes it."""
    width, signed, digits = 0, False, text.replace("_", "")
    prefix = re.match(r"([0-9]+)([ws])", digits)
    if prefix:
        width, signed = int(prefix[1]), prefix[2] == "s"
        digits = digits[prefix.end() :]
    base = {"0x": 16, "0d": 10, "0o": 8, "0b": 2}.get(digits[:2].lower(), 0)
    return (int(digits[2:] or "0", base) if base else int(digits or "0")), width, signed


_TYPE_ENDS: Final = frozenset(
    ("TYPE", "_ARGS_CLOSE", "VOID", "BOOL", "STRING", "BIT", "INT", "ERROR", "MATCH_KIND", "_RBRACKET")
)
_OPERAND_ENDS: Final = frozenset(("NAME", "TYPE", "_RPAR", "_RBRACKET", "_ARGS_CLOSE", "ERROR", "THIS"))


class P4Lexer(Lexer):
    """Gives lark the tokens that `classify` made."""

    def __init__(self, lexer_conf: Any) -> None:
        pass

    def lex(self, data: Any) -> Iterator[Token]:  # type: ignore[override]
        return iter(data)


def classify(raw: list[Raw]) -> list[P4Token]:
    """The tokens as the grammar wants them."""
    return _Classifier(raw).run()


@dataclass(slots=True)
class _Scope:
    """Names declared between two braces, or in one declaration with its parameters."""

    kind: str
    depth: int
    names: dict[str, str] = field(default_factory=dict)


class _Classifier:
    """One pass over the tokens. A name is a `type`, `generic` type, generic `function`, or `value`."""

    def __init__(self, raw: list[Raw]) -> None:
        self.raw = raw
        self.at = 0
        self.out: list[P4Token] = []
        self.scopes = [_Scope("top", 0)]
        self.depth = 0
        self.parens = 0
        self.closers: set[int] = set()
        self.generic_methods: set[str] = set()
        self.typedef_depth: int | None = None

    def run(self) -> list[P4Token]:
        while self.at < len(self.raw):
            match self.raw[self.at].kind:
                case "number":
                    self.emit("INTEGER")
                case "string":
                    self.emit("STRING_LITERAL")
                case "word":
                    self.word()
                case _:
                    self.mark()
        return self.out

    def emit(self, kind: str) -> None:
        raw = self.raw[self.at]
        self.out.append(make_token(kind, raw.text, raw.location))
        self.at += 1

    # ---- looking around

    def text(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.raw[index].text if index < len(self.raw) else ""

    def is_word(self, ahead: int) -> bool:
        index = self.at + ahead
        return index < len(self.raw) and self.raw[index].kind == "word"

    def is_name(self, ahead: int) -> bool:
        return self.is_word(ahead) and self.text(ahead) not in KEYWORDS

    def before(self, back: int = 1) -> str:
        return self.out[-back].type if len(self.out) >= back else ""

    def meaning(self, name: str) -> str | None:
        return next((scope.names[name] for scope in reversed(self.scopes) if name in scope.names), None)

    def brace(self) -> str:
        return next(scope.kind for scope in reversed(self.scopes) if scope.kind != "declaration")

    def angle_end(self, start: int) -> int | None:
        """The index of the `>` that closes the `<` at `start`, if type arguments can be between them."""
        depth = parens = 0
        for index in range(start, len(self.raw)):
            text = self.raw[index].text
            if text == "(":
                parens += 1
            elif text == ")":
                parens -= 1
                if parens < 0:
                    return None
            elif text in ("{", "}", ";"):
                return None
            elif parens:
                continue
            elif text == "<":
                depth += 1
            elif text == ">":
                depth -= 1
                if not depth:
                    return index
            elif self.raw[index].kind == "mark" and text not in (",", ".", "[", "]"):
                return None
        return None

    def after_angles(self, ahead: int) -> str:
        """The text behind the `>` that closes the `<` there; empty if that opens no type arguments."""
        end = self.angle_end(self.at + ahead)
        return "" if end is None else self.text(end + 1 - self.at)

    # ---- scopes

    def declare(self, name: str, meaning: str, *, outside: bool = False) -> None:
        """Declares in the innermost scope; with `outside`, in the scope round the current declaration."""
        scope = self.scopes[-1]
        if outside and scope.kind == "declaration":
            scope = self.scopes[-2]
        scope.names[name] = meaning

    def open_declaration(self) -> None:
        """From here to the declaration's `;` or closing brace, names of parameters are known."""
        self.scopes.append(_Scope("declaration", self.depth))

    def close_declaration(self) -> None:
        if not self.parens:
            while (self.scopes[-1].kind, self.scopes[-1].depth) == ("declaration", self.depth):
                self.scopes.pop()

    # ---- marks

    def mark(self) -> None:
        text = self.text()
        match text:
            case "@":
                self.annotation()
            case "{":
                self.open_brace()
            case "}":
                self.close_brace()
            case "(" | ")":
                self.parens += 1 if text == "(" else -1
                self.emit(MARKS[text])
            case ";":
                self.emit("_SEMI")
                if self.typedef_depth == self.depth:
                    self.typedef_depth = None
                self.close_declaration()
            case "<":
                self.angle()
            case ">":
                self.close_angle()
            case ".":
                self.emit("_DOT" if self.before() in _OPERAND_ENDS else "DOT_PREFIX")
            case _:
                self.emit(MARKS[text])

    def open_brace(self) -> None:
        brace, kind = self.brace(), "other"
        if self.before() in ("NAME", "TYPE") and self.before(2) == "_TABLE":
            kind = "table"
        elif self.before() == "_ASSIGN" and self.before(2) == "ENTRIES":
            kind = "entries"
        elif self.before() == "_RPAR" and self.call_head() == "SWITCH":
            kind = "switch"
        elif self.follows_head({"HEADER", "STRUCT", "HEADER_UNION", "_ENUM"}):
            kind = "fields"
        elif self.follows_head({"_EXTERN_OBJECT"}):
            kind = "extern"
        self.emit("SWITCH_LBRACE" if brace == "switch" and self.before() == "COLON" else "_LBRACE")
        self.depth += 1
        self.scopes.append(_Scope(kind, self.depth))

    def close_brace(self) -> None:
        while len(self.scopes) > 1 and self.scopes[-1].depth >= self.depth:
            self.scopes.pop()
        self.depth = max(self.depth - 1, 0)
        self.emit("_RBRACE")
        # In `typedef struct S { ... } T;` the declaration goes on.
        if self.typedef_depth != self.depth:
            self.close_declaration()

    def call_head(self) -> str:
        """The kind of the token before the `(` that the last token closes."""
        depth = 0
        for index in range(len(self.out) - 1, -1, -1):
            if self.out[index].type == "_RPAR":
                depth += 1
            elif self.out[index].type == "_LPAR":
                depth -= 1
                if not depth:
                    return self.out[index - 1].type if index else ""
        return ""

    def follows_head(self, heads: set[str]) -> bool:
        """True if the declaration before a `{` begins with one of these tokens."""
        for token in reversed(self.out):
            if token.type in heads:
                return True
            if token.type in ("_SEMI", "_LBRACE", "_RBRACE", "_ASSIGN", "_LPAR", "SWITCH_LBRACE"):
                return False
        return False

    # ---- type arguments

    def angle(self) -> None:
        end = self.angle_end(self.at) if self.opens_arguments() else None
        if end is None:
            self.emit("LT")
        else:
            self.closers.add(end)
            self.emit("_ARGS_OPEN")

    def opens_arguments(self) -> bool:
        before = self.before()
        if before in ("BIT", "INT", "VARBIT", "TUPLE", "LIST", "_VALUE_SET"):
            return True
        if before not in ("NAME", "TYPE"):
            return False
        name = str(self.out[-1])
        if self.before(2) == "_DOT":
            return name in self.generic_methods and self.after_angles(0) == "("
        return self.meaning(name) in ("generic", "function")

    def close_angle(self) -> None:
        if self.at in self.closers:
            self.emit("_ARGS_CLOSE")
            return
        here = self.raw[self.at]
        if self.at + 1 < len(self.raw) and self.at + 1 not in self.closers:
            after = self.raw[self.at + 1]
            adjacent = after.line is here.line and after.offset == here.offset + 1
            if adjacent and after.text in (">", ">="):
                text = here.text + after.text
                self.out.append(make_token("SHR" if text == ">>" else "ASSIGN_OP", text, here.location))
                self.at += 2
                return
        self.emit("GT")

    def type_parameters(self) -> None:
        """The `<...>` after a name that is being declared."""
        if self.text() != "<":
            return
        end = self.angle_end(self.at)
        if end is None:
            return
        self.closers.add(end)
        self.emit("_ARGS_OPEN")
        while self.at < end:
            if self.is_name(0):
                self.declare(self.text(), "type")
                self.emit("TYPE")
            elif self.is_word(0):
                self.emit(KEYWORDS[self.text()])
            else:
                self.emit(MARKS.get(self.text(), "INTEGER"))

    # ---- words

    def word(self) -> None:
        text = self.text()
        if self.before() == "_DOT":
            self.emit("NAME")
        elif text in SOFT_KEYWORDS and self.is_soft_keyword(text):
            if text == "type":
                self.typedef_depth = self.depth
            self.emit(SOFT_KEYWORDS[text])
        elif text in KEYWORDS:
            self.keyword(text)
        else:
            self.name(text)

    def is_soft_keyword(self, text: str) -> bool:
        after = self.text(1)
        match text:
            case "apply":
                return after in ("{", "@")
            case "key" | "actions" | "entries":
                return self.brace() == "table" and after == "=" and self.text(2) == "{"
            case "state":
                return self.is_word(1) and self.text(2) == "{"
            case "priority":
                return self.brace() == "entries" and after == "="
            case "list":
                return after == "<"
            case _:
                begins = self.before() in ("", "_SEMI", "_RBRACE", "ANNOTATION")
                return begins and (self.is_word(1) or after == ".")

    def keyword(self, text: str) -> None:
        match text:
            case "header" | "struct" | "header_union" | "parser" | "control" | "package":
                self.emit(KEYWORDS[text])
                self.type_declaration()
            case "extern":
                self.extern()
            case "enum":
                ahead = next((each for each in range(1, 16) if self.text(each) in ("{", "")), 0)
                if ahead and self.is_name(ahead - 1):
                    self.declare(self.text(ahead - 1), "type", outside=True)
                self.emit("_ENUM")
            case "table" | "action":
                self.emit(KEYWORDS[text])
                if self.is_name(0):
                    if self.meaning(self.text()) is not None:
                        self.declare(self.text(), "value")
                    self.emit("NAME")
                    if text == "action":
                        self.open_declaration()
            case "typedef":
                self.typedef_depth = self.depth
                self.emit("TYPEDEF")
            case _:
                self.emit(KEYWORDS[text])

    def extern(self) -> None:
        after = self.after_angles(2) if self.text(2) == "<" else self.text(2)
        if after == "{" and self.is_name(1):
            self.emit("_EXTERN_OBJECT")
            self.type_declaration()
        else:
            self.emit("_EXTERN")

    def type_declaration(self) -> None:
        """The name of a type, which may have type parameters."""
        if self.is_name(0):
            self.declare(self.text(), "generic" if self.text(1) == "<" else "type", outside=True)
            self.emit("TYPE")
            self.open_declaration()
            self.type_parameters()

    def name(self, text: str) -> None:
        before, after = self.before(), self.text(1)
        meaning = self.scopes[0].names.get(text) if before == "DOT_PREFIX" else self.meaning(text)
        follows_type = before in _TYPE_ENDS
        if self.typedef_depth == self.depth and after == ";":
            self.declare(text, "type", outside=True)
            self.emit("TYPE")
        elif (follows_type or before == "NAME") and after in ("<", "(") and self.brace() != "fields":
            self.prototype(text)
        elif meaning not in ("type", "generic"):
            self.emit("NAME")
        elif after in ("=", ";", ",", ")", "in") and self.names_value(before):
            self.declare(text, "value")
            self.emit("NAME")
        else:
            self.emit("TYPE")

    def names_value(self, before: str) -> bool:
        """True if the next name declares a variable, parameter or instance: `T x`, `T(...) x`."""
        if self.brace() == "fields":
            return False
        if before == "_RPAR":
            return self.call_head() in ("TYPE", "_ARGS_CLOSE")
        return before in _TYPE_ENDS

    def prototype(self, text: str) -> None:
        """The name of a function or method where it is declared."""
        if self.text(1) == "<":
            if self.after_angles(1) != "(":
                self.emit("NAME")
                return
            if self.brace() == "extern":
                self.generic_methods.add(text)
            else:
                self.declare(text, "function", outside=True)
        elif self.meaning(text) is not None and self.brace() != "extern":
            self.declare(text, "value")
        self.emit("NAME")
        self.open_declaration()
        self.type_parameters()

    # ---- annotations

    def annotation(self) -> None:
        start = self.raw[self.at]
        self.at += 1
        if not self.is_word(0):
            raise P4Error("a name must follow @", start.location)
        name = self.text()
        self.at += 1
        structured = self.text() == "["
        if name == "pragma":
            body = self.rest_of_line(start.line)
            if not body:
                raise P4Error("@pragma needs a name", start.location)
            annotation = annotate(start.location, body[0].text, body[1:] or None, structured=False)
        else:
            inside = self.balanced() if structured or self.text() == "(" else None
            annotation = annotate(start.location, name, inside, structured=structured)
        self.out.append(make_token("ANNOTATION", f"@{name}", start.location, annotation))

    def rest_of_line(self, line: Line) -> list[Raw]:
        tokens = list(itertools.takewhile(lambda each: each.line is line, self.raw[self.at :]))
        self.at += len(tokens)
        return tokens

    def balanced(self) -> list[Raw]:
        opening = self.raw[self.at]
        closing = {"(": ")", "[": "]"}[opening.text]
        depth, first = 0, self.at + 1
        while self.at < len(self.raw):
            text = self.text()
            depth += (text == opening.text) - (text == closing)
            self.at += 1
            if not depth:
                return self.raw[first : self.at - 1]
        raise P4Error(f"this {opening.text} is never closed", opening.location)
