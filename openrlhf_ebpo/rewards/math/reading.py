"""Read an answer: one spelling of a text, exact numbers, and formulas as math-verify's parser reads them.

A formula counts only if it holds every number and letter of its text. math-verify takes words at the end for units and
forgets them; here nothing is cut off before the parser (latex2sympy2_extended) reads the text, and what the parser is
known to leave out is not read as a formula at all.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from fractions import Fraction

from openrlhf_ebpo.rewards.math.extraction import SPECIAL, last_box

_COMMANDS = (
    "×times πpi ∞infty ±pm ≤le ⩽le ≥ge ⩾ge ≠ne ≈approx ≡equiv ∪cup ∩cap ∈in ∅emptyset Øemptyset"
    " ⟨langle ⟩rangle ⌊lfloor ⌋rfloor ⌈lceil ⌉rceil △triangle ∠angle"
)
SYMBOLS = {
    **dict.fromkeys("−–—‐‑‒﹣", "-"),
    **dict.fromkeys("·⋅∙∗", r"\cdot "),
    **dict.fromkeys("÷⁄∕", "/"),
    **{each[0]: rf"\{each[1:]} " for each in _COMMANDS.split()},
    **{"°": r"^\circ ", "′": "'", "∶": ":", "。": ".", "√": r"\sqrt", "∛": r"\sqrt[3]"},
    **{letter: rf"\mathbb{{{plain}}}" for letter, plain in zip("ℝℤℕℚℂ", "RZNQC", strict=True)},
}
# currencies, and what has no width: joiners, marks of a writing direction
UNSEEN = dict.fromkeys(map(ord, "$€£¥₹\u200b\u200c\u200d\u200e\u200f\u061c\u2060\u2066\u2067\u2068\u2069\ufeff\xad"))
PICTURE = "[\u2600-\u26ff\u2705\u2713-\u2718\u2728\u2764\ufe0f\U0001f300-\U0001faff]"
INTEGER = re.compile(r"[+-]?[0-9]{1,1000}")
STYLE = r"(?:text(?:bf|it|rm|sf|tt|up|normal)?|math(?:bf|it|rm|sf|tt|normal)|operatorname|mbox|boldsymbol|bm)"
WORD = re.compile(rf"(?:\\{STYLE}\s*\{{\s*)?([A-Za-z]{{3,}})\s*\}}?")  # letters alone, perhaps in a text command
POWERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "万": 4, "亿": 8}
PLAIN_FUNCTIONS = "arcsin|arccos|arctan|sinh|cosh|tanh|coth|sin|cos|tan|cot|sec|csc|ln|log|pi"
DOUBLED = re.compile(r"\\\\(?:[A-Za-z]{2}|[{}%])")  # LaTeX that was escaped twice, not the end of a row
BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}


_NORMAL = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:displaystyle|limits|left|right|[bB]igg?[lrm]?|large|Large|bf|underline)(?![a-zA-Z])\.?", ""),
        (r"\\(?:text)?color *\{[a-zA-Z]+\}|\^ *\{ *\}", ""),
        (rf"\\(?:blacksquare|checkmark|qed)(?![a-z])|^\\{STYLE} *\{{ *(?:[Tt]he )?[Aa]nswer(?: is)? *:? *\}}", ""),
        (rf"^\\{STYLE} *\{{ *\(?([A-J])\)? *\}}$", r"\1"),
        (r"\\backslash(?![a-z])", r"\\setminus"),
        (r"\{([-+])\}", r"\1"),
        (rf"\\{STYLE} *\{{ *([-+]?[\d.,/]*\d) *\}}", r"\1"),
        (r"\\(vec|hat|bar|math(?:bf|rm|bb)) +([A-Za-z])(?![A-Za-z])", r"\\\1{\2}"),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"(?<!\\)\\(?:[,;:!> ]|q?quad(?![a-zA-Z]))|~|\s+", " "),
        (r"\\varnothing(?![a-zA-Z])|\\\{ *\\\}", r"\\emptyset"),
        (r"\\(?:math(?:rm|it|sf|normal)|text(?:rm|it|normal)?|operatorname|rm) *\{ *([ie]) *\}", r"\1"),
        (rf"^\\{STYLE} *\{{([^{{}}]* [^{{}}]*)\}}$", r"\1"),
        (rf"(\\{STYLE} *\{{[^{{}}]*[^{{}} ]) +(and|or|by) *\}}", r"\1} \\text{\2} "),
        (r"\\c?dots(?![a-zA-Z])", r"\\ldots"),
        (r"\\log *_ *(\d)", r"\\log_{\1}"),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:leqslant|leq)(?![a-zA-Z])|<=", r"\\le"),
        (r"\\(?:geqslant|geq)(?![a-zA-Z])|>=", r"\\ge"),
        (r"\\neq(?![a-zA-Z])|!=", r"\\ne"),
        (r"\\(?:approx|simeq|doteq|thickapprox)(?![a-zA-Z])", "="),
        (r"(?<=[\w)}]) *\*\* *(?=[\w({-])", "^"),
        (r"\^ *(-\d+|\d\d+)", r"^{\1}"),
        (rf"\\{STYLE} *\{{ *({PLAIN_FUNCTIONS}) *\}}", r"\\\1 "),
        (rf"(?<![a-zA-Z\\])({PLAIN_FUNCTIONS})(?![a-zA-Z])", r"\\\1"),
        (r"(?<=[A-Za-z]) *\^ *(\w|\{[^{}]*\}) *_ *(\w|\{[^{}]*\})", r"_\2^\1"),
        (r"_ *\{? *\\(odot|oplus|star|ast|infty)(?![a-z]) *\}?", r"_{\1}"),
        (r"(?<![a-zA-Z\\])infinity(?![a-zA-Z])", r"\\infty"),
        (r"\\mathbf *\{ *([RZNQ]) *\}|(?<=\\in) *([RZNQ])(?![a-zA-Z])", r"\\mathbb{\1\2}"),
        (r"\\text *\{ *(?:all )?real numbers *\}|^(?:all )?real numbers$", r"\\mathbb{R}"),
        (r"[ ,]*\(([a-z] *\\in *\\mathbb *\{[A-Z]\})\)$", r", \1"),  # (k \in Z) behind a formula
        (r",?(?: *\\text *\{)? *for all *\}? *[a-z](?: *\\in *\\mathbb *\{R\})?$", ""),
        (r"\\text *\{ *或者? *\}|或者?", r" \\text{or} "),
        (r"\\text *\{ *[和与且] *\}|[和与且]", r" \\text{and} "),
        (r"(?<![\w)}\]])\]([^][()]+,[^][()]+)(?=[][])", r"(\1"),  # ]a, b] and ]a, b[
        (r"([(\[][^][()]+,[^][()]+)\[(?!\w)", r"\1)"),
        (rf"^(?:\\{STYLE} *\{{ *)?(?:[Oo]ption|[Cc]hoice) *\(?([A-J])\)?(?: *\}})?", r"(\1) "),
        (rf"(?<=\d) *(?:\\{STYLE} *\{{)? *([aApP])\.? ?[mM]\.?(?: *\}})?$", lambda found: f" {found[1].lower()}m"),
        (r"^\(([0-9A-F]+)\) *(?=_)", r"\1"),
        (r"(?<=_)\{? *(?:\\text *\{|\() *(\w+) *[})] *\}?", lambda found: f"{{{BASES.get(found[1], found[1])}}}"),
        (r"^([+-]?\d+) *_ *\{ *10 *\}$", r"\1"),
        (  # what follows the word in a text command stays there
            rf"(?<=\d) *(\\{STYLE} *\{{)? *({'|'.join(POWERS)})s?(?![a-z])( *\}})?",
            lambda found: rf"\times 10^{{{POWERS[found[2]]}}} {found[1] if found[1] and not found[3] else ''}",
        ),
        (r"\\(?:lor|vee)(?![a-zA-Z])", r" \\text{or} "),
        (r"\\(?:land|wedge)(?![a-zA-Z])", r" \\text{and} "),
        (r" +", " "),
    )
]
ROW = re.compile(r"\\\\(?: *\[[^][]*\])?(?: *\\hline)?")
MATRIX = re.compile(
    r"(?:^|(?<==)) *(?P<scale>-?(?:\d+|[a-z]|\\frac *\{[^{}]*\} *\{[^{}]*\})?) *(?:[(\[]|(?P<brace>\\\{))? *"
    r"\\begin\{(?P<kind>[pb]?matrix|smallmatrix|array|cases)\}(?:\{[lcr| ]*\})?"
    r"(?P<rows>(?:(?!\\(?:begin|end)).)*)\\end\{(?P=kind)\} *[)\]]?$"
)
_DECIMAL = r"(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+)"
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_SIGNED = rf" *[+-]? *{_DECIMAL} *"
_EXPONENT = r" *\^ *(?:\{ *(?P<power%d>[+-]? *\d{1,4}) *\}|(?P<digit%d>\d))"
NUMBER = re.compile(
    r"(?P<sign>[+-]?) *(?:"
    r"(?P<whole>\d*)\.(?P<head>\d*)\\(?:overline|bar|dot) *\{?(?P<cycle>\d+)\}?"
    rf"|(?:(?P<mixed>{_WHOLE}) *)?\\frac *(?:\{{(?P<over1>{_SIGNED})\}}|(?P<over2>\d))"
    rf" *(?:\{{(?P<under1>{_SIGNED})\}}|(?P<under2>\d))"
    rf"|(?P<mixed2>{_WHOLE}) +(?P<over3>\d+)/(?P<under3>\d+)"
    rf"|(?P<over4>{_DECIMAL}) */ *(?P<under4>{_DECIMAL})"
    rf"|10{_EXPONENT % (1, 1)}"
    rf"|(?P<factor>{_DECIMAL})(?:[eE](?P<power2>[+-]?\d{{1,4}})(?![\d.])"
    rf"| *(?:\\times|\\cdot|\*) *10{_EXPONENT % (3, 3)})?"
    r")"
)
CHOICES = re.compile(r"\(?[A-J①-⑩]\)?(?: *(?:,|、|;|&|\band\b) *\(?[A-J①-⑩]\)?)+")  # A, C and D: ACD
PERCENT = re.compile(rf" *(?:\\?%|percent|pct|\\{STYLE} *\{{ *(?:percent|pct|\\?%) *\}})")
MAX_NUMBER = 1000  # characters
FUNCTIONS = (
    "sin|cos|tan|cot|sec|csc|log|exp|lim|max|min|gcd|lcm|det|deg|arg|sup|inf|arcsin|arccos|arctan|sinh|cosh|tanh|sqrt"
)
# What the parser leaves out, or reads as something else.
MISREAD = re.compile(
    r":|'|\\[cl]?dots|\.\.|…|\d \d|\d *_|\.\d+\.|\\(?:pmod|bmod|mod)(?![a-z])|\\mid|\\(?:to|angle)(?![a-z])"
    rf"|\\{STYLE} *\{{[^{{}}]*\}} *\d|(?<![A-Za-z\\])(?!(?:{FUNCTIONS})(?![A-Za-z]))[A-Za-z]{{3,}} *\d|[eE][+-]?\d{{5}}"
)
ARGUMENT = re.compile(r"\\(?:begin|end|mathbb|mathcal) *\{[^{}]*\}|\\[A-Za-z]+")  # letters that are not variables
# Else they are read as \gamma and e.
LETTER = re.compile(rf"\\(Gamma)(?! *[(a-zA-Z])|\\{STYLE} *\{{[^{{}}]*\}}|{ARGUMENT.pattern}|(?<!\d)(E)(?![a-z])")


def clean(text: str) -> str:
    """Give one spelling to what differs in typing only: a box around it all, dollars, mathematics brackets, thousands
    spaces, final full stop, and Unicode digits, minus, fractions, powers, roots and operators."""
    text = SPECIAL.sub("", text).replace("\\$", "").translate(UNSEEN)
    if DOUBLED.search(text) and not re.search(r"(?<!\\)\\(?:\\\\)*(?!\\)", text):  # every backslash is doubled
        text = text.replace("\\\\", "\\")
    if not text.isascii():
        text = re.sub(r"([√∛])\s*(\d+|[^\W\d_]|\([^()]*\))", r"\1{\2}", text)
        for characters, mark in (("⁰¹²³⁴-⁾ⁿⁱ", "^"), ("₀-₎ₐ-ₜ", "_")):
            text = re.sub(f"[{characters}]+", lambda run, mark=mark: f"{mark}{{{_plain(run[0])}}}", text)
        text = "".join(map(_ascii, text))
    text = re.sub(r"(?<=\d)(?:,\\! *|\\[,;:! ]|\{,\})+(?=\d{3})", "", text).strip()
    text = re.sub(r"(?<!\\)\\[()\[\]]", "", text)
    text = re.sub(rf"(?:(?<![.\\])[.,;:\s]|\\+|(?<=.){PICTURE})+$", "", text).strip()
    text = re.sub(r"^[\"'“‘](.*)[\"'”’]$", r"\1", text)
    if re.fullmatch(r"[+-]?\d{1,3}(?: \d{3})+", text):
        return text.replace(" ", "")
    if text.startswith(("\\boxed", "\\fbox")) and (inner := last_box(text)) is not None:
        return clean(inner)
    return text


def _ascii(character: str) -> str:
    if character.isascii():
        return character
    if character in SYMBOLS:
        return SYMBOLS[character]
    kind = unicodedata.decomposition(character).partition(" ")[0]
    if kind == "<circle>":  # ①③ is not 13
        return character
    if kind == "<fraction>":
        over, _, under = _plain(character).partition("⁄")
        return f"\\frac{{{over}}}{{{under}}}"
    digit = unicodedata.decimal(character, None)
    return _plain(character) if digit is None else str(digit)


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("−", "-")


@functools.lru_cache(maxsize=4096)  # many answers have one gold
def normal(text: str) -> str:
    """Give one spelling to LaTeX commands that mean the same."""
    for pattern, replacement in _NORMAL:
        text = pattern.sub(replacement, text)
    if "\\\\" in text or "matrix}" in text:
        text = MATRIX.sub(_rows, text)
        text = text if r"\begin" in text else ROW.sub(", ", text)
    return text.strip().removeprefix("=").strip()


def _rows(matrix: re.Match) -> str:
    """Write a matrix as a tuple of its rows, a row or column as a tuple, and a system of equations as a list."""
    rows = [row.strip() for row in ROW.split(matrix["rows"]) if row.strip()]
    if matrix["brace"] or matrix["kind"] == "cases":
        return matrix[0] if "&" in matrix["rows"] else ", ".join(rows)
    scaled = f"{matrix['scale']}(%s)" if matrix["scale"] else "%s"
    rows = [", ".join(scaled % entry.strip() for entry in row.split("&")) for row in rows]
    is_vector = len(rows) == 1 or "&" not in matrix["rows"]
    return f"({', '.join(rows if is_vector else (f'({row})' for row in rows))})"


def spelled(text: str) -> str:
    """Return the text that is compared where nothing else can be: without styles, needless spaces and braces; words in
    lower case."""
    text = re.sub(" +", " ", re.sub(rf"\\{STYLE} *\{{([^{{}}]*)\}}", r"\1", text)).strip(" .")
    if CHOICES.fullmatch(text):
        text = "".join(re.findall("[A-J①-⑩]", text))
    text = re.sub(r"([_^])\{([^{}\\])\}", r"\1\2", text)
    text = re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text).strip()
    text = re.sub(r"(?<![A-Za-z\\])[A-Za-z]{3,}", lambda word: word[0].lower(), text)
    if re.fullmatch(r"[A-Za-z]+(?: [A-Za-z]+)+", text) and re.search("[a-z]{3}", text):  # a text of several words
        return re.sub(r"^(?:an?|the) |(?<=[a-z]{3})s\b", "", text.lower())
    return re.sub(r"\(([A-Za-z])\)", r"\1", text, count=1) if len(text) == 3 else text


def number(text: str) -> tuple[Fraction, bool] | None:
    """Read a rational number, and whether it is in percent: decimal, repeating decimal, fraction, mixed number,
    `3.5e4`, `6.63\\times10^{-34}`."""
    match = NUMBER.match(text) if len(text) <= MAX_NUMBER else None
    rest = text[match.end() :] if match else ""
    if match is None or (rest and not PERCENT.fullmatch(rest)):
        match, rest = (NUMBER.fullmatch(text), "") if len(text) <= MAX_NUMBER else (None, "")
    value = match and value_of(match)
    return None if value is None else (value, bool(rest))


def value_of(match: re.Match) -> Fraction | None:
    """Return the value of a match of NUMBER; None for a division by zero."""
    part = {name: (value or "").replace(",", "").replace(" ", "") for name, value in match.groupdict().items()}
    sign = -1 if part["sign"] == "-" else 1
    if cycle := part["cycle"]:
        head = part["whole"] + part["head"]
        value = Fraction(int(head + cycle) - int(head or 0), 10 ** len(part["head"]) * (10 ** len(cycle) - 1))
        return sign * value
    under = part["under1"] or part["under2"] or part["under3"] or part["under4"]
    if under:
        over = part["over1"] or part["over2"] or part["over3"] or part["over4"]
        mixed = Fraction(part["mixed"] or part["mixed2"] or 0)
        return sign * (mixed + Fraction(over) / Fraction(under)) if Fraction(under) else None
    power = int(part["power1"] or part["digit1"] or part["power2"] or part["power3"] or part["digit3"] or 0)
    return sign * Fraction(part["factor"] or 1) * Fraction(10) ** power


@functools.lru_cache(maxsize=4096)
def formula(text: str):
    """Return a formula as sympy has it, not evaluated; None if it cannot be read, or not all of it."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from latex2sympy2_extended.math_normalization import NormalizationConfig, normalize_latex
    from sympy import Basic, Symbol, preorder_traversal
    from sympy.core.function import AppliedUndef

    if MISREAD.search(text):
        return None
    spelling = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
    keep_case = ConversionConfig(lowercase_symbols=False)

    def named(found: re.Match) -> str:
        return rf"\text{{Letter{found[1] or found[2]}}}" if found[1] or found[2] else found[0]

    try:
        found = latex2sympy(
            normalize_latex(LETTER.sub(named, _without_cycles(text)), spelling),
            is_real=True,
            normalization_config=None,
            conversion_config=keep_case,
        )
    except Exception:  # the parser raises Exception itself
        return None
    letters = set(re.findall("[A-Za-z]", ARGUMENT.sub(" ", text)))
    parts = [part for part in preorder_traversal(found) if isinstance(part, Basic)]
    names = [part.name for part in parts if isinstance(part, Symbol)]
    names += [str(part.func) for part in parts if isinstance(part, AppliedUndef)]
    functions = FUNCTIONS if re.search(FUNCTIONS, text) else ""
    return found if letters <= {*"".join(names), *"dDeEI", *functions} else None


def _without_cycles(text: str) -> str:
    """Write repeating decimals as fractions."""

    def fraction(match: re.Match) -> str:
        value = value_of(match) if match["cycle"] else None
        return match[0] if value is None else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"

    return NUMBER.sub(fraction, text) if re.search(r"\\(?:overline|bar|dot)", text) else text
