r"""The LaTeX that answers to mathematical questions are made of, as MathML: browsers draw it without any script.

Every piece of text in the result is escaped, and every tag in it stands in this file, so a formula can draw and do
nothing else. What is not known (an unknown command, an open brace) gives None: the caller shows the source.
"""

from __future__ import annotations

import html
import re

from .symbols import (
    ACCENTS,
    DOUBLE_STRUCK,
    FENCES,
    FRACTIONS,
    FUNCTIONS,
    LETTERS,
    LIMITS,
    OPERATORS,
    SIZES,
    SPACES,
    TEXT,
)

_TOKEN = re.compile(r"\\[A-Za-z]+\*?|\\.|[{}^_&]|\d+(?:[.,]\d+)*|\s+|.", re.S)
_DEPTH = 24


class _Unknown(Exception):
    pass


def formula(source: str, display: bool = False) -> str | None:
    """One formula as a <math> element, or None."""
    try:
        tokens = _Tokens(source)
        body = _row(tokens, 0)
        if tokens.peek() is not None:
            return None
    except (_Unknown, IndexError):
        return None
    return f'<math display="{"block" if display else "inline"}">{body}</math>'


class _Tokens:
    def __init__(self, source: str):
        self.found, self.at = _TOKEN.findall(source), 0

    def peek(self) -> str | None:
        return self.found[self.at] if self.at < len(self.found) else None

    def next(self) -> str:
        self.at += 1
        return self.found[self.at - 1]

    def skip_spaces(self) -> None:
        while (token := self.peek()) is not None and token.isspace():
            self.at += 1


def _row(tokens: _Tokens, depth: int, until: tuple[str, ...] = ()) -> str:
    """Pieces with their sub- and superscripts up to a closing token, which stays."""
    if depth > _DEPTH:
        raise _Unknown
    pieces = []
    while (token := tokens.peek()) is not None and token not in until:
        if token == "}":
            raise _Unknown
        wide = token.lstrip("\\") in LIMITS
        piece = _scripts(tokens, _piece(tokens, depth), wide, depth)
        if piece:
            pieces.append(piece)
    return f"<mrow>{''.join(pieces)}</mrow>"


def _scripts(tokens: _Tokens, base: str, wide: bool, depth: int) -> str:
    below = above = None
    while True:
        tokens.skip_spaces()
        mark = tokens.peek()
        if mark == "_" and below is None:
            tokens.next()
            below = _argument(tokens, depth)
        elif mark == "^" and above is None:
            tokens.next()
            above = _argument(tokens, depth)
        elif mark == "'" and above is None:
            tokens.next()
            above = "<mo>′</mo>"
        else:
            break
    if below is None and above is None:
        return base
    base = base or "<mrow></mrow>"
    kind = ("munder", "mover", "munderover") if wide else ("msub", "msup", "msubsup")
    if below is not None and above is not None:
        return f"<{kind[2]}>{base}{below}{above}</{kind[2]}>"
    return f"<{kind[0]}>{base}{below}</{kind[0]}>" if below is not None else f"<{kind[1]}>{base}{above}</{kind[1]}>"


def _argument(tokens: _Tokens, depth: int) -> str:
    tokens.skip_spaces()
    token = tokens.peek()
    if token is not None and token.isdigit() and len(token) > 1:  # x^12 raises the 1 alone
        tokens.found[tokens.at : tokens.at + 1] = [token[0], token[1:]]
    return _piece(tokens, depth + 1)


def _piece(tokens: _Tokens, depth: int) -> str:
    if depth > _DEPTH:
        raise _Unknown
    token = tokens.next()
    if token.isspace() or token == "~":
        return ""
    if token == "{":
        inner = _row(tokens, depth + 1, ("}",))
        tokens.next()
        return inner
    if token.startswith("\\"):
        return _command(tokens, token[1:], depth)
    if token[0].isdigit():
        return f"<mn>{_escape(token)}</mn>"
    if token in "^_":
        tokens.at -= 1
        return "<mrow></mrow>"
    if token == "&":
        raise _Unknown
    return f"<mi>{_escape(token)}</mi>" if token.isalpha() else f"<mo>{_escape(token.replace('-', '−'))}</mo>"


def _command(tokens: _Tokens, name: str, depth: int) -> str:
    if name in LETTERS:
        return f"<mi>{LETTERS[name]}</mi>"
    if name in OPERATORS:
        return f"<mo>{_escape(OPERATORS[name])}</mo>"
    if name in FUNCTIONS:
        return f"<mi>{name}</mi>"
    if name in SPACES:
        return f'<mspace width="{SPACES[name]}em"></mspace>'
    if name in ("{", "}", "%", "$", "#", "&", "_"):
        return f"<mo>{_escape(name)}</mo>"
    if name in FRACTIONS:
        return f"<mfrac>{_argument(tokens, depth)}{_argument(tokens, depth)}</mfrac>"
    if name in ("binom", "dbinom"):
        return (
            f'<mo>(</mo><mfrac linethickness="0">{_argument(tokens, depth)}{_argument(tokens, depth)}</mfrac><mo>)</mo>'
        )
    if name == "sqrt":
        return _root(tokens, depth)
    if name in ("boxed", "fbox"):
        return f'<mrow class="boxed">{_argument(tokens, depth)}</mrow>'
    if name in ACCENTS:
        return f"<mover>{_argument(tokens, depth)}<mo>{ACCENTS[name]}</mo></mover>"
    if name in TEXT:
        return _text(tokens, double=name == "mathbb")
    if name in SIZES:
        if tokens.peek() == "." and name in ("left", "right"):
            tokens.next()
        return ""
    if name in ("pmod", "bmod"):
        inner = _argument(tokens, depth) if name == "pmod" else ""
        return f'<mo>(</mo><mi>mod</mi><mspace width="0.25em"></mspace>{inner}<mo>)</mo>' if inner else "<mi>mod</mi>"
    if name == "begin":
        return _table(tokens, depth)
    raise _Unknown


def _root(tokens: _Tokens, depth: int) -> str:
    tokens.skip_spaces()
    if tokens.peek() != "[":
        return f"<msqrt>{_argument(tokens, depth)}</msqrt>"
    tokens.next()
    degree = _row(tokens, depth + 1, ("]",))
    tokens.next()
    return f"<mroot>{_argument(tokens, depth)}{degree}</mroot>"


def _braced(tokens: _Tokens) -> str:
    tokens.skip_spaces()
    if tokens.next() != "{":
        raise _Unknown
    words, open_braces = [], 1
    while True:
        token = tokens.next()
        open_braces += (token == "{") - (token == "}")
        if not open_braces:
            return "".join(words)
        words.append(token)


def _text(tokens: _Tokens, double: bool) -> str:
    words = _braced(tokens)
    return f"<mtext>{_escape(DOUBLE_STRUCK.get(words, words) if double else words)}</mtext>"


def _table(tokens: _Tokens, depth: int) -> str:
    kind = _braced(tokens)
    if kind not in FENCES:
        raise _Unknown
    if kind == "array":
        _braced(tokens)
    rows, row = [], []
    while True:
        row.append(_row(tokens, depth + 1, ("&", "\\\\", "\\end")))
        mark = tokens.next()
        if mark == "&":
            continue
        rows.append(row)
        row = []
        if mark == "\\end":
            break
    if _braced(tokens) != kind:
        raise _Unknown
    cells = "".join(f"<mtr>{''.join(f'<mtd>{cell}</mtd>' for cell in row)}</mtr>" for row in rows)
    fences = [f"<mo>{_escape(fence)}</mo>" for fence in FENCES[kind]] + ["", ""]
    return f"<mrow>{fences[0]}<mtable>{cells}</mtable>{fences[1]}</mrow>"


def _escape(text: str) -> str:
    return (
        html.escape(text)
        .replace("$", "&#36;")
        .replace("{", "&#123;")
        .replace("}", "&#125;")
        .replace("\\", "&#92;")
        .replace("`", "&#96;")
    )
