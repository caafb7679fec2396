"""Read the unit behind a value: `5 km`, `5\\text{ kilometers}`, `24\\text{ cm}^2`, `60^\\circ`, `12 米`, `12
people`."""

from __future__ import annotations

import re

UNITS = {
    "m": ("meter", "metre", "米"),
    "mm": ("millimeter", "millimetre", "毫米"),
    "cm": ("centimeter", "centimetre", "厘米"),
    "km": ("kilometer", "kilometre", "千米", "公里"),
    "in": ("inch", "inche"),
    "ft": ("foot", "feet"),
    "yd": ("yard",),
    "mi": ("mile",),
    "g": ("gram", "gm", "克"),
    "kg": ("kilogram", "千克", "公斤"),
    "lb": ("pound",),
    "s": ("sec", "second", "秒"),
    "min": ("minute", "分钟"),
    "h": ("hr", "hour", "小时"),
    "day": ("天",),
    "l": ("liter", "litre", "L"),
    "ml": ("milliliter", "millilitre", "mL"),
    "degree": ("deg", r"\circ", r"^\circ", r"\degree", "度"),
    "rad": ("radian",),
    "unit": (),
    "N": ("newton",),
    "J": ("joule",),
    "W": ("watt",),
    "V": ("volt",),
    "K": ("kelvin",),
    "Hz": ("hertz",),
    "Pa": ("pascal",),
    "kW": ("kilowatt",),
    "kJ": ("kilojoule",),
    r"\Omega": ("ohm",),
    "C": ("coulomb",),
    "F": ("farad",),
    "dollar": ("usd",),
    "cent": (),
}
UNIT_OF = {
    spelled: name for name, others in UNITS.items() for other in (name, *others) for spelled in (other, other + "s")
}
UNIT_OF["ms"] = "ms"  # milliseconds, not several m
AREAS = {"square": "2", "sq": "2", "cubic": "3", "平方": "2", "立方": "3"}
COMMAND = r"\\(?:text(?:rm|bf|it|sf|normal)?|mathrm|mathsf|mbox|rm|operatorname)"
_WORD = (
    rf"(?:{COMMAND}\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|(?<![A-Za-z\\])[A-Za-z]+|\^?\s*\{{?\s*\\(?:circ|degree)\s*\}}?)"
)
_POWER = r"(?:\s*\^\s*(?:\{-?\d+\}|\d))?"
TAIL = re.compile(rf"(?:\s|~|\\[,;:! ])*({_WORD}{_POWER}(?:\s*/\s*{_WORD}{_POWER})?)\s*$")
FRACTION = re.compile(
    rf"\\[dt]?frac\s*\{{\s*{COMMAND}\s*\{{([^{{}}]*)\}}\s*\}}\s*\{{\s*{COMMAND}\s*\{{([^{{}}]*)\}}\s*\}}"
)
SPACE = r"(?:\s|~|\\[,;:! ])"
_PIECE = (
    rf"(?:{COMMAND}\s*\{{(?:[^{{}}\d^]|\^(?:\{{-?\d\}}|\d))*\}}|\\(?:Omega|mu)(?![a-z])|\^?\s*\{{?\s*\\(?:circ|degree)\s*\}}?"
    r"|(?<![A-Za-z\\])[A-Za-z]+\.?|(?<![^\W\d_a-zA-Z])[^\W\d_a-zA-Z]+)"
)
UNIT = re.compile(rf"{SPACE}*({_PIECE}{_POWER}(?:(?:{SPACE}|/|\\cdot|\*|-)*{_PIECE}{_POWER})*){SPACE}*")
# Not units: number words, words that join or compare, Chinese numerals.
WORDLESS = re.compile(r"(?:[^A-Za-z]|\\[A-Za-z]+)*[\d}] [A-Za-z]{2}")  # a formula without letters, then a word
NOT_UNITS = re.compile(
    r"\b(?:and|or|to|if|not|than|where|for|with|by|from|when|plus|minus|mod|pi|one|two|three|four|five|six|seven|eight|nine|ten"
    r"|eleven|twelve|dozen|hundred|thousand|[mbtr]+illions?|hal(?:f|ves)|thirds?|quarters?|squared|cubed|factorial|percent"
    r"|hundreds|thousands|dozens)\b|[零一二三四五六七八九十百万亿萬億兆半或和]|千(?![米克瓦])",
    re.IGNORECASE,
)
MAX_UNIT = 80  # characters


def unit_behind_number(text: str, is_gold: bool) -> str | None:
    """Return the unit in what follows a number, None if it may be something else.

    is_gold: a single letter of a gold is a variable, as in `5m`, unless it is in a text command.
    """
    text = FRACTION.sub(r"\\text{\1/\2}", text)
    match = UNIT.fullmatch(text) if len(text) <= MAX_UNIT and not NOT_UNITS.search(text) else None
    if match is None:
        return None
    words = re.findall(rf"{COMMAND}\s*\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}}|(?<![A-Za-z\\])[A-Za-z]+", text)
    is_apart = text[0] in " ~\\"
    fine = all(_is_unit_word(word, is_apart, is_gold and len(words) == 1 and "circ" not in text) for word in words)
    return name_of(match[1]) if fine else None


def unit_behind_formula(text: str) -> tuple[str, str | None]:
    """Return a formula without the unit behind it, and the unit; only units that are known, in a text command
    or behind a formula without letters."""
    text = FRACTION.sub(r"\\text{\1/\2}", text)
    tail = TAIL.search(text[-120:])
    value = text[: -len(tail[0])] if tail else ""
    if (
        not value
        or re.search(rf"{COMMAND}|,", value)
        or not ("\\" in tail[1] or WORDLESS.fullmatch(value + tail[0][:3]))
    ):
        return text, None
    name = name_of(tail[1])
    is_unit = is_known(name) and not (len(name) == 1 and name.isalpha() and name not in tail[1])
    return (value, name) if is_unit else (text, None)


def _is_unit_word(word: str, is_apart: bool, is_lone_gold: bool) -> bool:
    if word.startswith("\\"):
        name = re.sub(rf"{COMMAND}|[{{}}\s~]", "", word)
        is_vector = word.startswith(("\\textbf", "\\textit")) and len(name) == 1 and name not in UNIT_OF
        return name not in ("", "e", "i", "d") and not is_vector
    if len(word) < 3:
        is_unit = word in UNIT_OF or word in AREAS
        return is_unit and (is_apart or word != "in") and not (len(word) == 1 and is_lone_gold)
    return word.lower() in UNIT_OF or (is_apart and re.search("[aeiouy]", word, re.IGNORECASE) is not None)


def name_of(unit: str) -> str:
    """Return one spelling: "cm^2" for "\\mathrm{~cm}^{2}" and "square centimeters"."""
    text = re.sub(rf"{COMMAND}(?![a-z])|[{{}}~]|\\[,;:!]|\\(?= )", " ", unit)
    text = re.sub(r"(?:\\cdot|\s)*\b([A-Za-z]+)\s*\^\s*-1", r"/\1", text)
    parts = [_one_name(part) for part in re.sub(r"\bper\b|每", "/", text).split("/")]
    return "/".join("mi/h" if part == "mph" else part for part in parts)


def is_known(name: str) -> bool:
    return all(part.partition("^")[0] in UNITS for part in name.split("/"))


def _one_name(text: str) -> str:
    words = text.split()
    if len(words) == 1 and words[0][:2] in AREAS and len(words[0]) > 2:
        words = [words[0][:2], words[0][2:]]
    if len(words) > 1 and words[0].lower() in AREAS:
        return f"{_one_name(words[1])}^{AREAS[words[0].lower()]}"
    base, power, exponent = "".join(words).partition("^")
    if not base:
        return UNIT_OF.get(exponent, exponent)
    name = UNIT_OF.get(base, UNIT_OF.get(base.lower()))
    return (name or (base if len(base) < 3 else base.lower().removesuffix("s"))) + power + exponent
