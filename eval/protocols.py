"""Protocols: named, versioned sets of all settings that decide what a score means.

default   T = 1, top-p 1, 20,480 tokens, 32 runs, the prompt that the model was trained with, the last \\boxed{} or else
           the last "Answer:" line, math-verify
greedy     default with T = 0 and one run

A setting that is changed shows in the name, `default+n=8`, and results of different protocols do not share a table.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from dataclasses import asdict, dataclass, fields, replace

from openrlhf_ebpo.data.questions import check_template
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.progress import fingerprint

from .prompts import TEMPLATES, TRAINING

BOX_OR_ANSWER_LINE = "last box, else last Answer: line"
MATH_VERIFY = "math-verify"
# left out of records and fingerprints while they are off
OPTIONAL = ("top_k", "min_p", "stop", "template_kwargs")
COLDEST = 0.01  # vLLM takes a lower temperature above 0 for this one, and would not sample what the protocol says
GRADING = ("extraction", "scorer", "scorer_version")
UNSET = {"chat_template": "as the model was trained", "max_model_len": "what the longest prompt needs"}
FILE_NAME = re.compile(r"\w[\w.-]{0,60}\.py")
IN_FOLDER = re.compile(r"[\w.:-]{0,60}")


@dataclass(frozen=True)
class Protocol:
    """Every setting of an evaluation.

    n: responses to a question.
    max_new_tokens: of a response; max_model_len: of prompt and response together, None for what they need.
    template: a name in prompts.TEMPLATES, text with {question} in it, or "training" for the one the model was trained
        with; chat_template: whether it goes into the tokenizer's, None for as the model was trained.
    extraction, scorer, scorer_version: how answers are read and compared; of a reward file its name and hash.
    top_k: only the k likeliest tokens are drawn from, -1 for all; min_p: only those that are at least min_p times as
        likely as the likeliest. stop: texts that end a response, left out of it.
    template_kwargs: (name, value as JSON) of further arguments of the chat template, sorted.
    """

    name: str
    version: int = 1
    n: int = 32
    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 20_480
    max_model_len: int | None = None
    template: str = TRAINING
    chat_template: bool | None = None
    extraction: str = BOX_OR_ANSWER_LINE
    scorer: str = MATH_VERIFY
    scorer_version: str = "0.9.0"
    seed: int = 42
    top_k: int = -1
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    template_kwargs: tuple[tuple[str, str], ...] = ()

    @property
    def reward(self) -> str | None:
        """Return NAME@HASH of the reward file that grades; None for the reward `math`."""
        return None if self.scorer == MATH_VERIFY else f"{self.scorer}@{self.scorer_version}"

    @property
    def sampling(self) -> Protocol:
        """Return the protocol with the reward `math`: responses do not depend on what grades them."""
        math = {name: getattr(Protocol, name) for name in GRADING}
        return replace(self, **math, name=_name(replace(self, **math)))

    def settings(self) -> dict:
        """Return all settings but the name, as JSON has them; OPTIONAL ones where they are on."""
        values = {**asdict(self), "stop": list(self.stop)}
        values["template_kwargs"] = {name: json.loads(value) for name, value in self.template_kwargs}
        left_out = {"name", *(name for name in OPTIONAL if getattr(self, name) == getattr(Protocol, name))}
        return {name: value for name, value in values.items() if name not in left_out}

    def fingerprint(self) -> str:
        """Return 12 hex digits of the settings."""
        return fingerprint(json.dumps({**self.settings(), "n_by_task": {}}, sort_keys=True).encode())

    def record(self) -> dict:
        """Return the protocol as results keep it."""
        return {"name": self.name, "fingerprint": self.fingerprint(), **self.settings()}

    def describe(self) -> str:
        """Return all settings by name, one per line."""
        lines = [f"protocol {self.name}, version {self.version} ({self.fingerprint()})"]
        for name, value in self.settings().items():
            if name != "version" and value != {}:
                text = UNSET[name] if value is None else value
                text = text if isinstance(text, str) and text.isprintable() else json.dumps(text)
                lines.append(f"  {name:<24}{text}")
        return "\n".join(lines)


PROTOCOLS = {each.name: each for each in (Protocol("default"), Protocol("greedy", n=1, temperature=0.0))}


def override(protocol: Protocol, **changes) -> Protocol:
    """Return the protocol with other settings, and a name that says which. None stands for no change.

    Raises:
        UsageError: a setting that is out of range.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    changed = replace(protocol, **changes)
    check_protocol(changed)
    return replace(changed, name=_name(changed))


def with_reward(protocol: Protocol, reward: str) -> Protocol:
    """Return the protocol with another reward than `math`. reward: NAME@HASH of its file."""
    name, _, digest = reward.rpartition("@")
    extraction = f"'extracted' of {name}, else {BOX_OR_ANSWER_LINE}"
    changed = replace(protocol, extraction=extraction, scorer=name, scorer_version=digest)
    return replace(changed, name=_name(changed))


def check_protocol(protocol: Protocol) -> None:
    """Check that a protocol's settings are in range and fit together.

    Raises:
        UsageError: a setting that is out of range; names its flag.
    """
    p, room = protocol, protocol.max_model_len
    problems = {
        f"--n {p.n}: must be at least 1": p.n < 1,
        f"--max_new_tokens {p.max_new_tokens}: must be at least 1": p.max_new_tokens < 1,
        f"--temperature {p.temperature}: must be 0 (greedy), or from {COLDEST}, the least that vLLM samples with": not (
            p.temperature == 0 or COLDEST <= p.temperature < float("inf")
        ),
        f"--temperature 0 --n {p.n}: gives the same response {p.n} times; use --n 1": p.temperature == 0 and p.n > 1,
        f"--top_p {p.top_p}: must be above 0 and at most 1": not 0 < p.top_p <= 1,
        f"--top_k {p.top_k}: must be at least 1, or -1 for all tokens": p.top_k != -1 and p.top_k < 1,
        f"--min_p {p.min_p}: must be from 0 (off) to 1": not 0 <= p.min_p <= 1,
        "--stop '': an empty text would end every response; leave it out": not all(p.stop),
        f"--max_model_len {room}: leaves no room for a prompt with --max_new_tokens {p.max_new_tokens}": room
        is not None
        and room <= p.max_new_tokens,
    }
    if found := [problem for problem, is_so in problems.items() if is_so]:
        raise UsageError("; ".join(found))
    check_template(protocol.template, (*TEMPLATES, TRAINING))


def check_scorer(protocol: Protocol) -> None:
    """Check that the installed math-verify is the version that the protocol names.

    Raises:
        UsageError: it is another one, and would score differently under the protocol's name.
    """
    try:
        found = importlib.metadata.version("math-verify")
    except importlib.metadata.PackageNotFoundError:
        found = "not installed"
    if found != protocol.scorer_version:
        raise UsageError(
            f"protocol {protocol.name} scores with math-verify {protocol.scorer_version}, here it is {found}: "
            "pip install 'openrlhf_ebpo[math]'"
        )


def _name(protocol: Protocol) -> str:
    """Return the name of the protocol it was made from, and what differs from that. Of a reward without its hash: its
    results stay in place, to be graded again, when it is changed."""
    base = PROTOCOLS[protocol.name.partition("+")[0]]
    changes = [
        f"{'reward' if field.name == 'scorer' else field.name}={_short(getattr(protocol, field.name))}"
        for field in fields(Protocol)
        if field.name not in ("name", "extraction", "scorer_version")
        and getattr(protocol, field.name) != getattr(base, field.name)
    ]
    return "+".join([base.name, *([",".join(changes)] if changes else [])])


def _short(value) -> str:
    """Write a value so that it fits into a folder's name."""
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return _digest(json.dumps(value))
    if isinstance(value, tuple):
        text = "-".join(f"{name}:{each}" for name, each in value)
        return text if IN_FOLDER.fullmatch(text) else _digest(text)
    if isinstance(value, str) and value not in (*TEMPLATES, TRAINING):
        return value if FILE_NAME.fullmatch(value) else _digest(value)
    return str(value)


def _digest(text: str) -> str:
    return "text-" + hashlib.sha256(text.encode()).hexdigest()[:8]
