"""Find the answer of a response: the text that is compared with the gold answer (grading.py).

Of what follows the thoughts (`<think>…</think>`) the first of these counts, and of several the last one: the content
of a `\\boxed{...}`, what follows "Answer:" at the start of a line, the content of `<answer>...</answer>`, a last line
`#### 7`. A number anywhere else does not count. Markup around the answer (`$$`, `\\[`, a code fence, a bullet, `>`,
bold) is taken off. All functions take time linear in the length of the response.
"""

from __future__ import annotations

import itertools
import re

# <think>, <seed:think>, <thought> (EXAONE), [THINK] (Magistral), ◁think▷ (Kimi)
THOUGHT_TAG = re.compile(r"</?(?:\w{1,30}:)?(?:think|thinking|thought|reasoning)(?::\w{1,30})?>|\[/?THINK\]|◁/?think▷")
SPECIAL = re.compile(
    r"<[|｜][^<>\n]{1,60}[|｜]>|</?s>|<(?:bos|eos|pad|end_of_turn)>|\x1b\[[\d;]*m"
)  # of tokens, terminals
# A second backslash is forgiven. A bare number needs no braces, and any other escaped character is not a brace.
TOKEN = re.compile(
    r"(?P<open>\\{1,2}(?:boxed|fbox)\s*\{)|\\{1,2}boxed\s+(?P<bare>-?\d+)|\\.|(?P<brace>[{}])", re.DOTALL
)
BOX_NAME = re.compile(r"(?:(\\?[A-Za-z]+(?:_\w|_\{\w+\})?) *= *)?\$*$")  # x = \boxed{1}
MAX_BETWEEN_BOXES = 60  # characters
_BOX_SPACE = r"(?:[\s$~]|\\(?:q?quad|[,;:! ]))*"
BOXES_JOINED = re.compile(
    rf"{_BOX_SPACE}(?:[,;，；、]|[,;]?{_BOX_SPACE}(?:\\(?:text|mathrm) *\{{ *)?(?:and|or|和|或)\s*\}}?){_BOX_SPACE}"
)
_LABEL = r"(?:(?:the )?(?:final )?answer|(?:故|所以|因此)?(?:最终|最后|正确)?答案?(?:应?为|是)?)"
ANSWER_LINE = re.compile(
    rf"[ \t$*_#>`~•-]*(?:\d{{1,3}}[.)][ \t*_]+)?(?:\\text(?:bf)?\{{)?{_LABEL}(?: is)?[ \t*_]*[:：](?: *\}})?(.*)",
    re.IGNORECASE,
)
HEADING = re.compile(rf"[ \t>]*(?:#+[ \t*_]*{_LABEL}|\*\*{_LABEL}\*\*|__{_LABEL}__)[ \t*_#\r]*", re.IGNORECASE)
HASHES = re.compile(r"[ \t>*]*####(?!#)(.*)")
QUOTE = re.compile(r"\n(?:[ \t]*>)+")
ITEM = re.compile(r"[ \t]*(?:[-*+•][ \t]+|\d{1,3}[.)][ \t]+)(?=\S)")
FENCE = re.compile(r"(?P<mark>```|~~~)(?:[\w+#-]*[ \t]*\r?\n)?")
ENVIRONMENT = re.compile(
    r"\\begin\{(?P<name>(?:align|aligned|equation|gather|gathered|multline|displaymath|math|eqnarray|split|center)\*?)\}"
)
DELIMITERS = {"$$": "$$", r"\[": r"\]", r"\(": r"\)", "$\n": "\n$", "`": "`", "<answer>": "</answer>"}
NUMBERING = re.compile(r"\\(?:tag\*?|label)\{[^{}]*\}|\\(?:nonumber|notag)(?![a-z])|(?<!\\)&")
EMPHASIS = " \t\r\n*_"
BOLD = re.compile(r"(?<![\w)}])\*\*|\*\*(?![\w(\\{])")
MARKUP = re.compile(
    r"(?:[\s$*_`~#>.:：•-]|\\[\[\]()\\,;:! ]|\\(?:begin|end)\{[a-z]*\*?\}|\\(?:text|mathrm|textbf|mathbf)\{\s*\})*"
)
MAX_LINE = 100_000  # characters; a longer line is not markup alone
MAX_LAYERS = 8  # of markup around an answer


def extract_answer(response: str, in_thoughts: bool = False) -> str | None:
    """Find the answer of a response; "" if there is nothing in its place but markup, None if it gives none.

    in_thoughts: the response begins in thoughts, which its prompt has opened (`opened_thoughts`).
    """
    text = SPECIAL.sub("", without_thoughts(response, in_thoughts))
    found = last_box(text) if "box" in text else None
    if found is None:
        found = _after_label(text)
    if found is None:
        end = text.rfind("</answer>")
        start = text.rfind("<answer>", 0, max(end, 0))
        found = None if start < 0 else text[start + len("<answer>") : end]
    if found is None and (hashes := HASHES.match(text.rstrip().rpartition("\n")[2])):
        found = hashes[1]
    return None if found is None else unwrap(found)


def opened_thoughts(prompt: str) -> str:
    """Return the tag with which a prompt ends, if it opens thoughts, as some chat templates do; "" otherwise."""
    text = prompt.rstrip()
    tag = THOUGHT_TAG.fullmatch(text, max(map(text.rfind, "<[◁")))
    return tag[0] if tag and "/" not in tag[0] else ""


def without_thoughts(response: str, in_thoughts: bool = False) -> str:
    """Return the text after the last end of thoughts, and nothing of thoughts that do not end. in_thoughts: as in
    `extract_answer`."""
    start, end = 0, 0 if in_thoughts else len(response)
    for tag in THOUGHT_TAG.finditer(response):
        if "/" in tag[0]:
            start, end = tag.end(), len(response)
        else:
            end = min(end, tag.start())
    return response[start:end]


def last_box(text: str) -> str | None:
    """Return the content of the box that closes last; of several that are joined, as in `x=\\boxed{1}` or
    `x=\\boxed{-2}`, a list. One that never closes does not count: the response was cut off there."""
    boxes: list[tuple[int, int, str]] = []  # closed ones, none inside another: start, end, content
    opened: list[re.Match | None] = []  # open braces: of a box, or of nothing
    for token in TOKEN.finditer(text):
        if token["bare"]:
            boxes.append((*token.span(), token["bare"]))
        elif token["open"] or token["brace"] == "{":
            opened.append(token if token["open"] else None)
        elif token["brace"] == "}" and opened and (start := opened.pop()):
            while boxes and boxes[-1][0] > start.start():
                boxes.pop()
            boxes.append((start.start(), token.end(), text[start.end() : token.start()]))
    return _joined_boxes(text, boxes) if boxes else None


def _joined_boxes(text: str, boxes: list[tuple[int, int, str]]) -> str:
    """Return the contents of the last box and of those that are joined to it; with their names, if these differ."""
    contents: list[str] = []
    names: list[str | None] = []
    while boxes:
        start, _, content = boxes.pop()
        between = text[max(start - MAX_BETWEEN_BOXES, boxes[-1][1] if boxes else 0) : start]
        name = BOX_NAME.search(between)
        contents.insert(0, content)
        names.insert(0, name[1])
        if not BOXES_JOINED.fullmatch(between, 0, name.start()):
            break
    if None not in names and len(set(names)) == len(names) > 1:
        contents = [f"{name}={content}" for name, content in zip(names, contents, strict=True)]
    return ", ".join(dict.fromkeys(contents))


def _after_label(text: str) -> str | None:
    """Return the text after the last "Answer:" at the start of a line: the first block that is not only markup."""
    end = len(text)
    while end >= 0:
        start = text.rfind("\n", 0, end) + 1
        line = text[start:end]
        if match := ANSWER_LINE.match(line):
            return _first_block(match[1] + text[end:])
        if HEADING.fullmatch(line) and (block := _first_block(text[end:])):
            return block
        end = start - 1
    return None


def _first_block(text: str) -> str:
    """Return the display formula, code block, list or line that a text begins with."""
    head, _, below = text.partition("\n")
    if not head.strip(EMPHASIS):
        text = QUOTE.sub("\n", f"\n{below}").lstrip()
        if items := list(itertools.takewhile(ITEM.match, text.split("\n"))):
            return ", ".join(unwrap(ITEM.sub("", item, count=1)) for item in items)
    text = text.lstrip(EMPHASIS)
    inner, after = _opened(text)
    if inner is not None and "\n" in text[: len(text) - len(after)]:
        return inner
    lines = (line for line in text.split("\n") if not FENCE.fullmatch(f"{line}\n"))
    return next((line for line in lines if not _is_markup(line)), "")


def unwrap(text: str) -> str:
    """Take off what encloses all of a text: display and inline delimiters, code fences, environments, bold."""
    for _ in range(MAX_LAYERS):
        text = BOLD.sub("", text).strip(EMPHASIS)
        inner, after = _opened(text)
        if inner is None or after.strip(" \t\r\n.。"):
            break
        text = inner
    return "" if _is_markup(text) else text


def _opened(text: str) -> tuple[str | None, str]:
    """Split a text into the part that its leading delimiters enclose and the rest; None without delimiters."""
    if environment := ENVIRONMENT.match(text):
        inner, closed, after = text[environment.end() :].partition(rf"\end{{{environment['name']}}}")
        return (_joined(inner), after) if closed else (None, "")
    if fence := FENCE.match(text):
        inner, closed, after = text[fence.end() :].partition(fence["mark"])
        return (inner, after) if closed else (None, "")
    for start, end in DELIMITERS.items():
        if text.startswith(start):
            inner, closed, after = text[len(start) :].partition(end)
            return (inner, after) if closed else (None, "")
    return None, ""


def _joined(rows: str) -> str:
    """Write the rows of an environment in one line: a row that begins with a relation continues the one before."""
    found = ""
    for row in re.split(r"\\\\(?:\[[^\]]*\])?", NUMBERING.sub("", rows)):
        if row := row.strip():
            found += row if not found or row[0] in "=<>" else f", {row}"
    return found


def _is_markup(text: str) -> bool:
    return len(text) <= MAX_LINE and MARKUP.fullmatch(text) is not None
