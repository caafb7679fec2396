"""Split an answer at its top level: lists, tuples, ratios, named values, relations, residues, sets of solutions."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from openrlhf_ebpo.rewards.math.units import COMMAND

JOINING = rf"{COMMAND}\s*\{{[\s,]*%s[\s,]*\}}|,?(?<![a-zA-Z\\])%s(?![a-zA-Z])"
AND = re.compile("|".join(JOINING % (word, word) for word in ("(?:and|or|by)",)) + "|;|，|、|；")
OR, ALSO = (re.compile(JOINING % (word, word)) for word in ("or", "and"))
ELEMENT = re.compile(r"^(?:[A-Za-z](?:_\{?\w+\}?)?|\([a-z, ]+\))\s*\\in\s*(?!\\(?:mathbb|math|Z|R|N|Q))")
BUILDER = re.compile(
    r"^\\\{\s*([A-Za-z])\s*(?:\\in\s*\\(?:mathbb\s*\{?\s*R\s*\}?|R)\s*)?(?:\\mid|\\vert|\||:)\s*(.+)\\\}$"
)
# Between two quantities: "5 ft 3 in", "2 hours 30 minutes".
BOUNDARY = re.compile(
    rf"((?:{COMMAND}\s*\{{[^{{}}\d]*[a-zA-Z][^{{}}\d]*\}}|(?<![A-Za-z\\])[A-Za-z]{{2,}}\.?))\s*(?=\d)"
)
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
PM, MP = re.compile(r"\\pm(?![a-zA-Z])"), re.compile(r"\\mp(?![a-zA-Z])")
CLOCK = re.compile(r"0?(\d{1,2}:[0-5]\d)")
NAMED = re.compile(
    r"^\s*(?P<name>(?P<base>\\?[A-Za-z]+|[A-Z] *\\c[au]p *[A-Z]|m? *\\angle *[A-Z]+|\\(?:text|mathrm)\{[^{}]*\})"
    r"(?:_(?:\w|\{[^{}]*\}))?'*(?:\([^()=]*\))?)\s*=(?P<value>[^=]+)$"
)
RATIO_NAMES = re.compile(r" *\\?[A-Za-z][^:=,\d]*(?:_\{?\w+\}?)? *(?:: *\\?[A-Za-z][^:=,\d]*(?:_\{?\w+\}?)? *)+")
TOGETHER = re.compile(r"^\((?P<names>[^()\d]+)\) *= *\((?P<values>.+)\)$")  # (x, y) = (1, 2)
SIGN = re.compile(r"\\(?:le|ge|ne)(?![a-zA-Z])|[<>=]|\\equiv(?![a-zA-Z])")
FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
INEQUALITY = re.compile(r"[<>]|\\(?:le|ge|ne)(?![a-zA-Z])")
FUNCTION_VALUE = re.compile(r"(?<![A-Za-z\\])([A-Za-z])\([a-z]\)")  # f(x), a value like any other: 0 < f(x) < 1
RESIDUE = re.compile(
    r"^(.+?),?\s*\(?\s*(?:\\pmod|\\bmod|\\mod|(?:\\text\{\s*)?\bmod(?:\s*\})?)\s*\{?\s*([^{}()]+?)\s*\}?\s*\)?$"
)
BRACKETS = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle", "{": "}"}
SAME_BRACKETS = {r"\langle": "(", "{": r"\{"}


def is_balanced(text: str) -> bool:
    """Return whether braces close, and no command waits for its argument."""
    depth = 0
    for token in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(token[0], 0)
        if depth < 0:
            return False
    return depth == 0


def split(text: str, separator: str = ",") -> list[str]:
    """Split outside brackets. A set in braces is one piece."""
    depth, found = 0, [""]
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [piece.strip() for piece in found]


def entries(text: str) -> tuple[list[str], str]:
    """Return the parts of a list, tuple, interval or set, and its opening bracket; both signs of a ±."""
    text = ELEMENT.sub("", text)
    inner, bracket = text, ""
    for opening, closing in BRACKETS.items():
        ends = (closing,) if opening != "(" and opening != "[" else (")", "]")
        end = next((each for each in ends if text.endswith(each)), None)
        if text.startswith(opening) and end:
            enclosed = text[len(opening) : -len(end)]
            depths = [0, *itertools.accumulate((each in "([{") - (each in ")]}") for each in enclosed)]
            if min(depths) == depths[-1] == 0:  # the last bracket closes the first
                inner = enclosed.strip()
                bracket = SAME_BRACKETS.get(opening, opening) if end == closing else opening + end
                break
    found = _parts(inner)
    if bracket in ("(", "[") and len(found) == 1:
        return _parts(text), ""
    return found, bracket


def is_ordered(bracket: str) -> bool:
    return bracket[:1] in ("(", "[") and bracket != ""


def _parts(text: str) -> list[str]:
    text = BOUNDARY.sub(r"\1, ", AND.sub(",", text))
    return [sign for piece in split(text) if piece for sign in signs(piece)] or [text]


def signs(text: str) -> list[str]:
    r"""Return both readings of \pm and \mp, or the text."""
    return list(dict.fromkeys(PM.sub(upper, MP.sub(lower, text)).lstrip("+ ") for upper, lower in ("+-", "-+")))


def named_ratio(text: str) -> tuple[list[str], str]:
    """Return the names and the values of `a:b = 2:3`; no names and the text of anything else."""
    names, _, values = text.partition("=")
    found = RATIO_NAMES.fullmatch(names) and "=" not in values
    return (split(names, ":"), values.strip()) if found else ([], text)


def named(text: str) -> dict[str, str] | None:
    """Return values by name, in the order given, where every piece is `name = value` and the names differ in more than
    an index; also of (x, y) = (1, 2)."""
    if together := TOGETHER.match(text):
        names, values = split(together["names"]), split(together["values"])
        return dict(zip(names, values, strict=True)) if len(names) == len(values) else None
    found = [NAMED.match(piece) for piece in _parts(text)]
    if None in found or len({match["base"] for match in found}) < len(found):
        return None
    return {match["name"].replace(" ", ""): match["value"].strip() for match in found}


def in_order_of_names(named: dict[str, str], letters: str) -> list[str]:
    """Return values as they are written; in the order of their names, if these follow each other in `letters`."""
    names = sorted(named)
    return [named[name] for name in (names if "".join(names) in letters else named)]


def relation(text: str) -> tuple[list[str], list[str]]:
    """Return the sides of a chain of relations, and the signs between them."""
    return [side.strip() for side in SIGN.split(text)], SIGN.findall(text)


def residue(text: str) -> tuple[str, str] | None:
    """Return value and modulus of `x \\equiv 3 \\pmod{7}`."""
    match = RESIDUE.match(text)
    return match and (re.split(r"\\equiv(?![a-zA-Z])|=", match[1])[-1].strip(), match[2])


def solutions(text: str, formula: Callable):
    """Return the set that inequalities joined by "or" and "and", or intervals, describe; None if they cannot be
    read."""
    from sympy import Intersection, Set, Union
    from sympy.core.relational import Relational
    from sympy.logic.boolalg import And

    if builder := BUILDER.match(text):
        text = builder[2]
    if len(alternatives := OR.split(text)) > 1:
        found = [solutions(part.strip(), formula) for part in alternatives]
        return None if None in found else Union(*found)
    if len(conditions := [part for each in ALSO.split(text) for part in split(each)]) > 1 and INEQUALITY.search(text):
        found = [solutions(part.strip(), formula) for part in conditions]
        return None if None in found else Intersection(*found)
    read = formula(FUNCTION_VALUE.sub(r"\1", ELEMENT.sub("", text)))
    if isinstance(read, Set):
        return read
    if not isinstance(read, (Relational, And)) or len(read.free_symbols) != 1:
        return None
    try:
        return read.as_set()
    except (NotImplementedError, ValueError, TypeError):
        return None
