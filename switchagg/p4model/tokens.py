"""From characters to words, numbers, strings and marks; blanks and comments go. What they mean is the
lexer's matter.
"""

from __future__ import annotations

import re
from typing import Final

from lark import Token

from switchagg.p4model.ast import Annotation
from switchagg.p4model.errors import Location, P4Error
from switchagg.p4model.preprocess import Line

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


class Raw:
    """A token before it is classified. `kind` is word, number, string or mark."""

    __slots__ = ("kind", "line", "offset", "text")

    def __init__(self, kind: str, text: str, line: Line, offset: int) -> None:
        self.kind = kind
        self.text = text
        self.line = line
        self.offset = offset

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
                raise P4Error(_lexical_reason(text[at]), line.location(at))
            kind = found.lastgroup
            assert kind is not None
            if kind != "blank":
                tokens.append(Raw(kind, found[0], line, at))
                _check_number(tokens, found[0], kind, line, at)
            at = found.end()
    return tokens


def _check_number(tokens: list[Raw], text: str, kind: str, line: Line, at: int) -> None:
    if kind == "word" and len(tokens) > 1:
        before = tokens[-2]
        if before.kind == "number" and before.line is line and before.offset + len(before.text) == at:
            raise P4Error(f"{before.text}{text} is no number", before.location)


def _lexical_reason(character: str) -> str:
    if character == '"':
        return "this string does not end on its line"
    return f"unexpected character {character!r}"
