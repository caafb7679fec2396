"""The one list of what a secret looks like, and what is none."""

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fake_secrets import FORMS
from patience import seconds

from openrlhf_ebpo.hub.content import Publishable
from openrlhf_ebpo.hub.public import public_text
from openrlhf_ebpo.redact import (
    SECRETS,
    find_private,
    is_secret,
    redacted,
    redacted_argv,
    redacted_text,
    without_secrets,
)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_secret_is_known_to_logs_to_tables_and_behind_any_sign(form):
    needle = "NEEDLE000001WXYZ"
    secret = FORMS[form].replace("{}", needle)
    assert find_private(secret, ()) is not None
    for text in (secret, f"failed: {secret}, again", f'{{"x": "{secret}"}}', f"({secret})", f"/data/me/{secret}/x"):
        assert needle not in without_secrets(text) and needle not in redacted_text(text), text
        assert redacted_text(redacted_text(text)) == redacted_text(text)
        assert pc.match_substring_regex(pa.array([text]), SECRETS)[0].as_py(), text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("http://host/path?token=x", "http://host/path"),
        ("http://host/path?x&y=2 and http://b/c?d.", "http://host/path and http://b/c"),
        ("http://a/x?t=1,2,http://b/y?t=3", "http://a/x,http://b/y"),
        ("https://me:p@ss@host:80/x?sig=abc#frag", "https://<redacted>@host:80/x"),
        ("https://host/x#access_token=abc", "https://host/x"),
        ("https://host/x#section", "https://host/x#section"),
        (
            "Max retries exceeded with url: /reward?token=abc (Caused by",
            "Max retries exceeded with url: /reward (Caused by",
        ),
        ("is https://host/x?", "is https://host/x?"),
    ],
)
def test_queries_of_addresses_go_whole(text, left):
    assert redacted_text(text) == left
    assert redacted_argv(["--reward.remote_url", text])[1] == left
    assert redacted({"reward": {"remote_url": [text]}})["reward"]["remote_url"] == [left]


@pytest.mark.parametrize(
    "text",
    [
        "a task-based, risk-averse disk-shaped answer: \\frac{1}{2}",
        "Qwen/Qwen3-8B, me/data@split, 2 + 2 = ?, sha 0123456789abcdef0123456789abcdef01234567",
        "from huggingface_hub import hf_hub_download, hf_transfer",
        "the bearer of this token: eyJ is no key, sk-learn neither",
        "pip install hf_transformers pypi-simple-repository, class sk-estimator-doc-link, run_hf_experimentalv2",
        "the bearer responsibilities, Bearer cryptocurrencies; solve ?x=3+y now, if a?b=c:d",
        "{% if messages[0]['role'] == 'system' %}<|im_start|>{{ eos_token }}",
    ],
)
def test_plain_texts_stay_as_they_are(text):
    assert redacted_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "{%- set BOS_TOKEN='<|begin_of_text|>' %} export HF_TOKEN=your_token_here",
        "PRIMARY_KEY=customer_id, SECRET=CODEWORD1, KEY=abcdefghij is the cipher key",
        "postgres://user:password@localhost/db, mysql://root:root@db, https://me:<token>@host/x, amqp://guest:guest@mq",
        "MKAKIAGHILMNPQRSTVWYACDEFGHIKLMNPQRSTVWY is a protein; export HF_TOKEN=hf_your_token_0123456789012345",
        "git clone ssh://git@github.com/x, https://a.b/i?logo=b@2x.png, http://x.com?mail=foo@bar.com, https://x.org,me@x.org",
        *("hf_" + "x" * 34, "sk-" + "0" * 40, "export OPENAI_API_KEY=your-api-key-12345"),  # placeholders
    ],
)
def test_texts_of_others_keep_what_only_resembles_a_secret(text):
    """Prompts, templates and files are the user's: nothing is taken out of them, or refused, without need."""
    assert without_secrets(text) == text
    assert find_private(text, ()) is None


def test_a_home_folder_is_private_whatever_its_name():
    assert find_private("in /home/bob/x", ("/home/bob",)) == 3


@pytest.mark.timeout(seconds(30))  # a second or two; what walks twice through them takes minutes
def test_hostile_texts_do_not_take_long():
    for text in (
        "eyJ-" * 50_000,
        "://" * 50_000,
        "a://b" * 50_000 + "?",
        "-----BEGIN PRIVATE KEY" * 9_000,
        "?a" * 90_000,
        "sk-" * 60_000,
        "A_KEY=" * 30_000 + "a" * 50_000,
        "/a" * 50_000 + "?",
        "/home/" * 50_000,
        "C:\\Users\\" * 50_000 + "a b " * 50_000,
        "~/a" * 50_000,
        "cookie:" * 30_000,
        "set-cookie:x" * 20_000,
        "Cookie:" + "a" * 200_000,
        "Bearer " + "a" * 200_000 + "1a" * 100_000,
        "machine " * 20_000 + "a login " * 20_000,
        "password=" * 30_000 + "a$" * 90_000,
    ):
        redacted_text(text)
        public_text(text)


SECRET_NAMES = """
    token api_key hub.api-key apiKey HF_TOKEN a.password Authorization x.client_secret use_auth_token
    accessToken db_passwd credentials aws_secret_access_key
"""


@pytest.mark.parametrize("name", SECRET_NAMES.split())
def test_names_of_secrets(name):
    assert is_secret(name)
    assert redacted({name: "short", "deep": {name: ["a", {"b": "c"}]}}) == {
        name: "<redacted>",
        "deep": {name: ["<redacted>", {"b": "<redacted>"}]},
    }


OTHER_NAMES = """
    data.input_key data.label_key data.image_key data.output_key ckpt.best_metric_key
    rollout.max_new_tokens data.tokenizer_chat_template a.monkey
"""


@pytest.mark.parametrize("name", OTHER_NAMES.split())
def test_names_that_only_look_like_one(name):
    assert not is_secret(name) and redacted({name: "prompt"}) == {name: "prompt"}


@pytest.mark.parametrize("start", ["AKIA", "ASIA"])  # AWS: of an account, and of a session
def test_both_kinds_of_aws_keys_are_secrets(start):
    key = start + "Q7ZX2MPL9WK4VB1T"
    assert find_private(f"aws {key} x", ()) is not None and key not in without_secrets(f"aws {key} x")


BEHIND = (
    "",
    " request-id-0f3a9f8e7d6c5b4a",
    ":x9y8z7w6v5u4t3s2@host.test",
    "=0f3a9f8e7d6c5b4a",
    "; b=0f3a9f8e7d6c5b4a",
)


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("form", FORMS)
def test_what_was_redacted_passes_the_filter(form, behind):
    """Nothing that follows the marker is taken for the secret that stood there."""
    secret = FORMS[form].replace("{}", "NEEDLE000001WXYZ")
    for clean in (redacted_text, without_secrets, public_text):
        left = clean(f"a {secret}{behind}")
        assert find_private(left, ()) is None, left
        Publishable({"run.json": json.dumps({"error": left}).encode()})
