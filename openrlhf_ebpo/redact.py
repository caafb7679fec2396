"""Secrets stay out of everything that is printed, written or published: the one list of what a secret looks like.

A secret is told by its own form (`without_secrets`), by standing in an address (`redacted_text`), or by the name under
which it is kept (`is_secret`). Home folders, which tell who somebody is, stay out of what is published
(`without_homes`).
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, SimpleNamespace

REDACTED = "<redacted>"


def _mixed(signs: str, least: int) -> str:
    """A run of `signs` with a digit that has `least` of them before or behind it: words of a language have none."""
    return f"(?:[{signs}]{{{least},}}[0-9][{signs}]*|[{signs}]*[0-9][{signs}]{{{least},}})"


# By form, in texts of anybody: prompts, templates, other people's files. Written for Python's `re` and for RE2 alike,
# which reads whole columns of text at once (hub/content.py). A repetition with a large limit, such as {1,200},
# makes RE2 a hundred times slower.
CREDENTIALS = r"://(?:[^/\s\"'?#,:@\x00]*:[^/\s\"'?#,\x00]+|[^/\s\"'?#,:@\x00]{12,})@"  # in an address
_LABELS = (
    r"(?:aws_)?secret_access_key|aws_session_token|x-api-key|api[_-]?key|(?:auth|access|api|refresh)[_-]?token"
    r"|client[_-]?secret|AccountKey|SharedAccessKey"
)
LABELLED = (  # what goes before the secret stays
    r"(\b[Bb]earer\s+)" + _mixed(r"A-Za-z0-9._~+/\-", 11) + "=*"
    r"|(\b[Aa]uthorization[\"']?\s*[:=]\s*[\"']?(?:[A-Z][a-z]+\s+)?)[A-Za-z0-9._~+/\-]{16,}=*"
    r"|(\b[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)=[\"']?)"
    + _mixed(r"A-Za-z0-9._~+/\-", 11)
    + rf"|(\b(?i:{_LABELS})[\"']?\s*[:=]\s*[\"']?)"
    + _mixed(r"A-Za-z0-9._~+/\-", 11)
    + "=*"
    r"|(\b(?i:password|passwd|pwd)[\"']?\s*[:=]\s*[\"']?)"
    + _mixed(r"A-Za-z0-9._~+/!#$^*\-", 7)
    + r"|(\bmachine\s+\S+\s+login\s+\S+\s+password\s+)[A-Za-z0-9._~+/!#$^*\-]{6,}"  # .netrc
    r"|(\b(?i:set-cookie|cookie)[\"']?\s*:\s*[\"']?(?:[^\s=;:\"'\x00]+|[^\s=;\"'\x00]{1,60})=)"
    + _mixed(r"A-Za-z0-9._~+/%\-", 11)
    + r"|(--?(?i:password|passwd|token|api[_-]?key|secret)[ =][\"']?)"
    + _mixed(r"A-Za-z0-9._~+/!#$^*\-", 7)
    + r"|([?&](?i:token|access_token|api_?key|key|sig|signature|password|secret)=)"  # sig: Azure's shared access
    + _mixed(r"A-Za-z0-9._~+/%\-", 11)
    + r"|(\"auth\"\s*:\s*\")[A-Za-z0-9+/]{16,}=*"  # .docker/config.json
    r"|(\"key\"\s*:\s*\")[0-9a-f]{32}\b"  # kaggle.json
)
TOKENS = "|".join(
    (
        r"hf_(?:oauth|jwt)_[A-Za-z0-9_.\-]{16,}",  # Hugging Face
        r"(?:hf|api_org)_[A-Za-z0-9]{30,}",
        r"(?:\b|_)local-[0-9a-f]{40}",  # wandb
        r"wandb_v[0-9]+_[A-Za-z0-9_]{20,}",
        r"(?:\b|_)sk-(?:(?:proj|svcacct|admin|ant|or)-[A-Za-z0-9_\-]{16,}|[A-Za-z0-9]{30,})",  # OpenAI, Anthropic
        r"\b(?:gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{40,}|nvapi-[A-Za-z0-9_\-]{40,}|pplx-[A-Za-z0-9]{40,}|r8_[A-Za-z0-9]{30,})",
        r"[prs]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
        r"gh[oprsu]_[A-Za-z0-9]{20,}",  # GitHub, GitLab
        r"github_pat_[A-Za-z0-9_]{20,}",
        r"\bgl(?:pat|dt|rt|ptt|cbt|soat|ft|agent|imt)-[A-Za-z0-9_\-]{16,}",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # AWS
        r"AIza[A-Za-z0-9_\-]{30,}|\bya29\.[A-Za-z0-9_\-]{20,}|\bGOCSPX-[A-Za-z0-9_\-]{20,}",  # Google
        r"xox[a-z]-[A-Za-z\-]*[0-9][A-Za-z0-9\-]{7,}",  # Slack
        r"hooks\.slack\.com/services/[A-Za-z0-9/]+|discord(?:app)?\.com/api/webhooks/[0-9]+/[A-Za-z0-9_\-]+",
        r"\b[MNO][A-Za-z0-9_\-]{23,27}\.[A-Za-z0-9_\-]{6}\.[A-Za-z0-9_\-]{27,}",  # Discord
        r"\b[0-9]{8,10}:AA[A-Za-z0-9_\-]{32,}",  # Telegram
        r"pypi-AgEI[A-Za-z0-9_\-]{16,}|npm_[A-Za-z0-9]{36}",
        # Databricks, Vault, SendGrid
        r"\bdapi[0-9a-f]{32}|\bhv[sb]\.[A-Za-z0-9_\-]{24,}|\bSG\.[A-Za-z0-9_\-]{16,}\.[A-Za-z0-9_\-]{16,}",
        # Docker, DigitalOcean, Grafana
        r"\bdckr_[po]at_[A-Za-z0-9_\-]{20,}|\bdo[opr]_v1_[0-9a-f]{64}|\bglsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}",
        r"eyJ[A-Za-z0-9_\-]{6,500}\.[A-Za-z0-9_\-]{6,}(?:\.[A-Za-z0-9_\-]*)?",  # JSON web tokens
        r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----[\s\S]*?(?:-----END [A-Z0-9 ]{0,60}-----|$)",
    )
)
SECRETS = f"{CREDENTIALS}|{LABELLED}|{TOKENS}"
_CREDENTIALS, _LABELLED, _TOKENS = (re.compile(pattern, re.ASCII) for pattern in (CREDENTIALS, LABELLED, TOKENS))

# In our own records and messages, where a word too many may go: less of a form is enough.
_OWN_CREDENTIALS = re.compile(r"://[^/\s\"']+@")
_OWN_LABELLED = re.compile(r"(\b[A-Z0-9_]*(?:KEY|TOKEN|SECRET|PASSWORD)=[\"']?)[^\s\"',;&]{8,}", re.ASCII)
# In addresses there. All of a query string goes: any part of it may be a signature, or let somebody in.
_ADDRESS = re.compile(r"://[^\s\"']+")
_NEXT_ADDRESS = re.compile(r",(?=[A-Za-z][A-Za-z0-9+.-]{0,20}://)")
# libraries quote `/path?token=…` without the host
_PATHS_QUERY = re.compile(r"(/[\w.%~/-]{0,200})\?[A-Za-z0-9_.%\[\]-]{1,64}=[^\s\"']*")

# By name.
_WORDS = r"(?:api|access|secret|private)?key|(?:api|access|auth)?token|secrets?|passw(?:or)?ds?|passphrase"
_SECRET_NAME = re.compile(rf"(?:^|[._/ -])(?:{_WORDS}|api_?keys|credentials?|auth|authorization|bearer|cookies?)$")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
NOT_SECRET = (
    *("input_key", "label_key", "image_key", "output_key", "metric_key", "cluster_key", "group_key", "sort_key"),
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
)
_PLACEHOLDER = re.compile(r"your|example|placeholder|changeme|insert|xxxx|0{12}|\*\*\*|\.\.\.", re.IGNORECASE)
# Harmless texts of the form NAME=value, of which no real secret has the form: names of columns and of special tokens,
# weak examples, code, folders.
_COLUMN = (
    r"(?:[A-Z0-9]+_)*(?:PRIMARY|FOREIGN|SORT|GROUP|PARTITION|CACHE|INPUT|OUTPUT|LABEL|MODEL|DATASET|BOS|EOS|PAD|UNK|SEP"
    r"|CLS|MASK|TOKENIZER)_(?:KEY|TOKEN)=.*"
)
_EXAMPLE = (
    r"(?:password|passw0rd|secret|token|key|string|test|admin|default|letmein|qwerty|welcome|abcd?)?[-_]?"
    r"(?:abc)?1?2?3?4?5?6?7?8?9?0?|not[-_]needed[-_0-9]*"
)
_WORDS_AND_NUMBER = (
    r"(?:my|test|demo|dummy|sample|foo|some|none|replace|api|client|access|auth|user|model|tokenizer)"
    r"(?:[-_.](?:[a-z]{1,12}|v?[0-9]{1,8})){2,}"
)
_CODE = r"[a-z_]{2,}(?:\.(?:[a-z_][a-z0-9_]*|[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+))+"
_HARMLESS = re.compile(
    rf"{_COLUMN}|[^=:]*[=:]\s*[\"']?(?:{_EXAMPLE}|{_CODE})|(?![^=:]*(?i:passw|pwd))[^=:]*[=:]\s*[\"']?{_WORDS_AND_NUMBER}"
    r"|(?i:[\"']?pwd)[\"']?\s*[=:]\s*[\"']?/[a-z]+/.*"
    r"|(?i:authorization)[\"']?\s*[:=]\s*[\"']?[A-Za-z]?[a-z]*(?:_[a-z]+)+",
    re.DOTALL,
)
_COMMON_PASSWORD = re.compile(r"(?i:pass(?:word|wd)?|pwd|secret|token|postgres|root|admin|user|test|guest|mysql)")
_USER = re.compile(r"[a-z]+(?:[._-][a-z]+)*")  # without a password
_KEY_BODY = re.compile(r"[A-Za-z0-9+/]{16}")

# Home folders of anybody: /home/NAME, /Users/NAME, /root, C:\Users\NAME (in JSON with two backslashes). Not behind a
# name or a sign of an address: https://host/home/x is a page, s3://home/x a bucket.
HOME = re.compile(
    r"(?<![\w.~%-])(?<!:/)(?:/home/[\w.@+-]{1,64}|/Users/[\w.@+-]{1,64}|/root(?![\w.-])"
    r"|[A-Za-z]:\\{1,2}Users\\{1,2}(?:[^\\/:*?\"<>|\r\n]{1,64}(?=\\)|[^\\/\s:*?\"<>|]{1,64}))"
)
_HOME_ENDS = r"\.*(?:[^0-9A-Za-z_.-]|$)"  # not the beginning of somebody else's name; a full stop may follow
_NAMED_HOME = re.compile(r"(?:/[^/\0]+){2,}")


class Secret(str):
    """A string that works as itself and prints as <redacted>: upstream prints all its arguments."""

    def __repr__(self) -> str:
        return repr(REDACTED)


def is_secret(name: str) -> bool:
    """True if what is kept under `name`, a flag or a JSON key (also with dots), is a secret whatever it looks like."""
    name = _CAMEL.sub("_", name).lower()
    return bool(_SECRET_NAME.search(name)) and not name.endswith(NOT_SECRET)


def without_secrets(text: str) -> str:
    """`text` without what looks like a secret wherever it stands; everything else stays, addresses and placeholders
    too."""
    text = _CREDENTIALS.sub(lambda match: match[0] if is_placeholder(match[0]) else f"://{REDACTED}@", text)
    text = _LABELLED.sub(_after_its_label, text)
    return _TOKENS.sub(lambda match: match[0] if is_placeholder(match[0]) else REDACTED, text)


def _after_its_label(match: re.Match) -> str:
    label = next(filter(None, match.groups()))
    return match[0] if is_placeholder(match[0][len(label) :]) else label + REDACTED


def is_placeholder(secret: str) -> bool:
    """True if a match only stands for a secret, in an explanation: hf_xxxx, your_key_1,
    postgres://user:password@host."""
    if secret.startswith("://"):
        user, _, password = secret[3:-1].partition(":")
        secret = password or user
        common = bool(_COMMON_PASSWORD.fullmatch(password)) or password == user or secret[0] in "<{$%"
        return common or bool(_PLACEHOLDER.search(secret)) or bool(not password and _USER.fullmatch(user))
    if "PRIVATE KEY" in secret:  # a text may only name the line with which a key begins
        return "-----END" not in secret and not _KEY_BODY.search(secret)
    return bool(_PLACEHOLDER.search(secret))


def find_private(text: str, homes: tuple[str, ...]) -> int | None:
    """Return the first match of `private_pattern` that is not a placeholder, or None. What was redacted is none."""
    text = text.replace(REDACTED, "\0" * len(REDACTED))  # which no pattern crosses
    found = [match.start() for match in re.finditer(SECRETS, text, re.ASCII) if not _is_harmless(match)]
    found += [match.start() for home in homes for match in re.finditer(_home(home) + _HOME_ENDS, text)]
    return min(found, default=None)


def _is_harmless(match: re.Match) -> bool:
    is_call = "=" in match[0] and match.string[match.end() : match.end() + 1] == "("
    return is_call or is_placeholder(match[0]) or bool(_HARMLESS.fullmatch(match[0]))


def without_homes(text: str) -> str:
    """`text` with ~ in place of every home folder."""
    return HOME.sub("~", text)


def own_homes() -> tuple[str, ...]:
    """The home folder of whoever runs this, where its name says who: /home/NAME, and not /root."""
    import pwd

    try:
        known = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # a container whose user has no name
        known = ""
    return tuple(sorted({home for home in (known, os.path.expanduser("~")) if _NAMED_HOME.fullmatch(home)}))


@functools.lru_cache
def private_pattern(homes: tuple[str, ...]) -> str:
    """A pattern of what no published text may hold: secrets, and these home folders. For `re` and RE2."""
    return "|".join([SECRETS, *(_home(home) + _HOME_ENDS for home in homes)])


def without_own_homes(text: str) -> str:
    """`text` with ~ in place of the home folder of whoever runs this, wherever `private_pattern` finds it."""
    for home in own_homes():
        text = re.sub(f"{_home(home)}(?={_HOME_ENDS})", "~", text)
    return text


def _home(folder: str) -> str:
    return re.escape(folder).replace("/", r"\\?/")  # JSON may write a slash as \/


def redacted_text(text: str) -> str:
    """`text` of our own records and messages: without secrets, and without the query strings of addresses."""
    text = _ADDRESS.sub(lambda match: ",".join(map(_without_query, _NEXT_ADDRESS.split(match[0]))), text)
    text = _OWN_CREDENTIALS.sub("://" + REDACTED + "@", _PATHS_QUERY.sub(r"\1", text))
    return without_secrets(_OWN_LABELLED.sub(lambda match: match[1] + REDACTED, text))


def _without_query(address: str) -> str:
    head, mark, query = address.partition("?")
    head, query = (head, query) if query else (address, "")  # a question mark that ends a sentence is none
    before, mark, fragment = head.partition("#")
    return before if mark and "=" in fragment else head


def redacted(value, name: str = "", clean: Callable[[str], str] = redacted_text):
    """A copy of nested values in plain JSON types, without secrets.

    Args:
        name: under which the value is kept, with dots; all texts below a secret name go.
        clean: what is done to every other text.
    """
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):
        return {
            clean(k) if isinstance(k, str) else k: redacted(v, name if is_secret(name) else f"{name}.{k}", clean)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(v, name, clean) for v in value]
    if isinstance(value, Secret):
        return REDACTED
    if isinstance(value, str):
        return REDACTED if value and is_secret(name) else clean(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def hide_secrets(args: dict) -> None:
    """Wrap secret values of a flat namespace in place."""
    for flag, value in args.items():
        if isinstance(value, str) and is_secret(flag):
            args[flag] = Secret(value)


def redacted_argv(
    argv: Iterable[str], args: Mapping = MappingProxyType({}), clean: Callable[[str], str] = redacted_text
) -> list[str]:
    """The command line as it may be stored, without the secrets that `args` (a flat namespace) holds: argparse takes
    beginnings of flags too. A flag comes as `--a.b VALUE` or as `--a.b=VALUE`."""
    secrets = [str.__str__(value) for value in args.values() if isinstance(value, Secret) and value]
    result, flag = [], ""
    for item in argv:
        for secret in secrets:
            item = item.replace(secret, REDACTED)
        name, equals, value = item.partition("=")
        if not item.startswith("--"):
            result.append(redacted(item, flag, clean))
            continue
        result.append(clean(name) + equals + redacted(value, name[2:], clean))
        flag = "" if equals else name[2:]
    return result
