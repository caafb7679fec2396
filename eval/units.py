"""Units behind an answer: "5 km", "5\\text{ kilometers}", "24\\text{ cm}^2", "60^\\circ"."""

from __future__ import annotations

import re

NAMES = {
    "m": ("meter", "metre"),
    "mm": ("millimeter", "millimetre"),
    "cm": ("centimeter", "centimetre"),
    "km": ("kilometer", "kilometre"),
    "in": ("inch", "inche"),
    "ft": ("foot", "feet"),
    "mi": ("mile",),
    "g": ("gram",),
    "kg": ("kilogram",),
    "s": ("sec", "second"),
    "min": ("minute",),
    "h": ("hr", "hour"),
    "day": (),
    "l": ("liter", "litre"),
    "ml": ("milliliter", "millilitre"),
    "degree": ("deg", r"\circ", r"^\circ", r"\degree"),
    "rad": ("radian",),
}
KNOWN = {
    spelled: name for name, others in NAMES.items() for other in (name, *others) for spelled in (other, other + "s")
}
KNOWN["ms"] = "ms"  # milliseconds, not several m

_COMMAND = r"\\(?:text|textrm|mathrm|mbox|rm|operatorname)"
_WORD = rf"(?:{_COMMAND}\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|(?<![A-Za-z\\])[A-Za-z]+|\^?\s*\{{?\s*\\(?:circ|degree)\s*\}}?)"
_POWER = r"(?:\s*\^\s*(?:\{-?\d+\}|\d))?"
TAIL = re.compile(rf"(?:\s|~|\\[,;:! ])*({_WORD}{_POWER}(?:\s*/\s*{_WORD}{_POWER})?)\s*$")
FRACTION = re.compile(
    rf"\\[dt]?frac\s*\{{\s*{_COMMAND}\s*\{{([^{{}}]*)\}}\s*\}}\s*\{{\s*{_COMMAND}\s*\{{([^{{}}]*)\}}\s*\}}"
)
AREAS = {"square": "2", "sq": "2", "cubic": "3"}


def without_unit(answer: str, unit: str) -> str | None:
    """Return the answer without its unit; as it is if it has none, or one that is not known here; None if it is known
    to be another unit than `unit`."""
    answer = FRACTION.sub(r"\\text{\1/\2}", answer)
    tail = TAIL.search(answer[-120:])
    if not tail or len(tail[0]) == len(answer):
        return answer
    found, wanted = _name(tail[1]), _name(unit)
    if found == wanted:
        return answer[: -len(tail[0])]
    return None if _is_known(found) and _is_known(wanted) else answer


def _name(unit: str) -> str:
    """Return one spelling: "cm^2" for "\\mathrm{~cm}^{2}" and "square centimeters"."""
    text = re.sub(rf"{_COMMAND}(?![a-z])|[{{}}~]|\\[,;:!]|\\(?= )", " ", unit)
    parts = [_one_name(part) for part in re.sub(r"\bper\b", "/", text).split("/")]
    return "/".join(parts)


def _one_name(text: str) -> str:
    words = text.split()
    if len(words) > 1 and words[0].lower() in AREAS:
        return f"{_one_name(words[1])}^{AREAS[words[0].lower()]}"
    base, power, exponent = "".join(words).partition("^")
    if not base:
        return KNOWN.get(exponent, exponent)
    return KNOWN.get(base if base in KNOWN else base.lower(), base) + power + exponent


def _is_known(name: str) -> bool:
    return all(part.partition("^")[0] in NAMES for part in name.split("/"))
