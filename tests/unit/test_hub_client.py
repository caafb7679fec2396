"""Permissions to write, and the messages of the client's failures, against the test server."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from patience import seconds, wait_until, wait_until_gone

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.hub_settings import check_target
from openrlhf_ebpo.hub.publish import Repo, same_run
from openrlhf_ebpo.hub_client import (
    HubError,
    hub_api,
    hub_errors,
    retrying,
    run_with_timeout,
)
from openrlhf_ebpo.redact import redacted_text


def check(hub, repo="owner/new", token=None, flag="--repo") -> list[str]:
    return check_target(Repo(hub_api(hub.url, token or hub.token), repo), False, same_run({}), flag)


def test_a_token_that_may_write_passes_for_a_new_and_for_an_existing_repo_and_nothing_is_created(hub):
    for repo in ("owner/new", "team/new"):
        assert check(hub, repo) == [f"pushing to {repo}, a new repo: private"]
    assert not hub.repos
    hub.create("owner/old", private=True)
    assert check(hub, "owner/old") == ["pushing to owner/old, which exists: private"]
    assert hub.count("auth-check/write") == 1


@pytest.mark.parametrize(
    ("token", "repo", "words"),
    [
        (
            "hf_wrongTOKENwrong",
            "owner/new",
            "does not accept the token, or wants one .*: set HF_TOKEN, or run `hf auth login`",
        ),
        ("READ", "owner/new", "may only read"),
        ("WRITE", "stranger/new", "belongs to owner, who may write for owner, team, not for stranger"),
    ],
)
def test_a_wrong_token_or_missing_rights_say_what_to_do(hub, token, repo, words):
    token = {"READ": hub.read_token, "WRITE": hub.token}.get(token, token)
    with pytest.raises(UsageError, match=words.replace("`", ".")) as caught:
        check(hub, repo, token, "--hub.repo")
    assert str(caught.value).startswith(f"--hub.repo {repo}: ") and token not in str(caught.value)


def test_without_a_token_there_is_nothing_to_ask(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(UsageError, match="no token for the Hub: set HF_TOKEN"):
        check_target(Repo(hub_api(hub.url), "owner/new"), False, same_run({}))
    assert not hub.requests


def test_a_repo_that_refuses_stops_and_a_hub_that_is_away_is_a_warning(hub):
    hub.create("owner/old")
    hub.fail("auth-check", 403)
    with pytest.raises(UsageError, match="no right to do this"):
        check(hub, "owner/old")
    for status in (429, 500, 503):
        hub.fail("whoami", status)
        assert f"({status})" in check(hub)[0]
    hub.stop()
    (warning,) = check(hub)
    assert warning.startswith("warning: the Hub cannot be reached") and "no usable answer" in warning


@pytest.mark.parametrize(
    ("status", "permanent", "words"),
    [
        (400, True, "the Hub refuses this"),
        (401, True, "does not accept the token"),
        (402, True, "paid plan"),
        (403, True, "no right to do this"),
        (404, False, "no such repo"),
        (409, False, "the Hub refuses this"),
        (412, False, "another commit was pushed meanwhile"),
        (429, False, "too many requests"),
        (500, False, "has a problem"),
        (503, False, "has a problem"),
    ],
)
def test_statuses_in_words(hub, status, permanent, words):
    api = hub_api(hub.url, hub.token)
    hub.fail("refs", status, headers={"Retry-After": "7", "X-Error-Message": "because hf_" + "abcdefgh1" * 4})
    with pytest.raises(HubError, match=words) as caught, hub_errors("asking"):
        api.list_repo_refs("owner/name")
    assert (caught.value.status, caught.value.permanent, caught.value.retry_after) == (status, permanent, 7)
    assert str(caught.value).startswith("asking: ") and "because <redacted>" in str(caught.value)


def test_the_rate_limit_header_of_the_hub_says_how_long_to_wait(hub):
    hub.fail("refs", 429, headers={"RateLimit": '"api";r=0;t=55'})
    with pytest.raises(HubError) as caught, hub_errors("asking"):
        hub_api(hub.url, hub.token).list_repo_refs("owner/name")
    assert caught.value.retry_after == 55


def test_untyped_failures_become_words_too(hub, no_waiting):
    hub.fail("refs", 200, body=b"<html>busy</html>")
    with pytest.raises(HubError, match=r"no usable answer .JSONDecodeError") as caught, hub_errors("asking"):
        hub_api(hub.url, hub.token).list_repo_refs("owner/name")
    assert not caught.value.permanent


def test_no_secret_gets_into_an_error():
    with pytest.raises(HubError) as caught, hub_errors("pushing"):
        try:
            raise ValueError("Authorization: Bearer hf_abcdefghijklmnop")
        except ValueError as cause:
            raise RuntimeError("Error while uploading to https://u:p4ss@s3.test/x?X-Amz-Signature=abc") from cause
    text = str(caught.value)
    assert "https://<redacted>@s3.test/x" in text and "Bearer <redacted>" in text
    assert not any(secret in text for secret in ("p4ss", "Signature", "hf_abc"))
    assert redacted_text("a plain sentence of 3 words?") == "a plain sentence of 3 words?"


def test_the_clients_own_log_is_cleaned_too(hub):
    hub_api(hub.url, hub.token)
    record = logging.makeLogRecord({"msg": "PUT %s", "args": ("https://s3.test/x?X-Amz-Signature=abc",)})
    handlers = logging.getLogger("huggingface_hub").handlers
    assert handlers and all(handler.filter(record) for handler in handlers)
    assert record.getMessage() == "PUT https://s3.test/x"


def test_offline_mode_is_no_reason_to_try_again(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE") as caught, hub_errors("asking"):
        hub_api(hub.url, hub.token).whoami()
    assert caught.value.permanent


@pytest.mark.parametrize(
    ("requested", "pauses"),
    [([None] * 11, [5, 10, 20, 40, 80, 160, 320, 600, 600, 600, 600]), ([77, 1, 99_999], [77, 10, 3600])],
)
def test_pauses_grow_and_the_hub_may_ask_for_more(monkeypatch, requested, pauses):
    monkeypatch.delenv("OPENRLHF_EBPO_HUB_PAUSE", raising=False)
    waited: list[float] = []

    def action():
        raise HubError("busy", 429, retry_after=[*requested, None][len(waited)])

    with pytest.raises(HubError, match="busy"):
        retrying(action, attempts=len(pauses) + 1, report=lambda _: None, sleep=waited.append)
    assert waited == pauses


def test_what_may_pass_is_tried_again_and_what_stays_is_not():
    errors = [HubError("busy", 503), HubError("wait", 429, retry_after=99)]
    waited, said = [], []

    def action():
        if errors:
            raise errors.pop()
        return "done"

    assert retrying(action, report=said.append, sleep=waited.append) == "done"
    assert waited[0] == 99 and len(waited) == len(said) == 2 and "wait" in said[0]
    errors = [HubError("no", 403, permanent=True)]
    with pytest.raises(HubError, match="no"):
        retrying(action, report=said.append, sleep=waited.append)
    errors = [HubError(f"busy {n}", 503) for n in range(9)]
    with pytest.raises(HubError, match="busy 6"):
        retrying(action, attempts=3, report=said.append, sleep=waited.append)


def test_what_the_server_says_steers_no_terminal(hub):
    hub.fail("refs", 403, body=json.dumps({"error": "\x1b[2J\u202eno\nline"}).encode())
    with pytest.raises(HubError) as caught, hub_errors("asking"):
        hub_api(hub.url, hub.token).list_repo_refs("owner/name")
    assert str(caught.value).isprintable() and "[2J no line" in str(caught.value)
    record = logging.makeLogRecord({"msg": "the Hub warns \x1b[2J\u202e"})
    for handler in logging.getLogger("huggingface_hub").handlers:
        handler.filter(record)
    assert record.getMessage().isprintable()


def test_a_token_that_is_none_is_named(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_\u00e4bcdefghijklmnopq")
    with pytest.raises(UsageError, match="token"):
        hub_api(hub.url)


@pytest.mark.parametrize(
    "account",
    [
        {"name": "owner", "auth": None},
        {"name": "owner", "orgs": None, "auth": {"accessToken": None}},
        {"name": "owner"},
    ],
    ids=json.dumps,
)
def test_an_account_with_nulls_is_read(hub, account):
    hub.fail("whoami", 200, body=json.dumps(account).encode())
    assert check(hub) == ["pushing to owner/new, a new repo: private"]


@pytest.mark.parametrize("account", [[], {"name": "owner", "auth": "x"}, {"name": "owner", "orgs": 1}], ids=json.dumps)
def test_an_account_of_another_shape_is_no_traceback(hub, account):
    hub.fail("whoami", 200, body=json.dumps(account).encode())
    assert "no usable answer" in check(hub)[0]


PROXIES = """
import os, sys
from openrlhf_ebpo.cli import hub
for proxy in sys.argv[1:]:
    os.environ.update(ALL_PROXY=proxy, HTTPS_PROXY=proxy)
    try:
        hub.main(["pull", "owner/model", "x"])
    except SystemExit as end:
        print(end)
"""


def test_a_proxy_that_cannot_be_used_is_one_line():
    proxies = ["foo://host", "http://host:port", "socks4://me:" + "secretpw9@host:1"]
    done = subprocess.run([sys.executable, "-c", PROXIES, *proxies], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and done.stderr == "" and "secretpw9" not in done.stdout
    said = "error: the proxy of the environment (HTTPS_PROXY, ALL_PROXY) cannot be used: "
    assert all(line.startswith(said) for line in lines)


# A complete attempt


def slow():
    time.sleep(seconds(60))


def refuse():
    raise HubError("no", 403, permanent=True, retry_after=3)


def test_an_attempt_that_is_too_slow_is_ended_with_its_process(monkeypatch):
    monkeypatch.setattr("openrlhf_ebpo.hub_client.CALLS_PER_ATTEMPT", 0.01)
    with pytest.raises(HubError, match="pulling: it did not end within 1 s") as caught:
        run_with_timeout(slow, "pulling", size=20_000)
    assert not caught.value.permanent


def test_what_an_attempt_gives_or_raises_arrives():
    assert run_with_timeout(lambda: {"a": 1}, "asking") == {"a": 1}
    with pytest.raises(HubError) as caught:
        run_with_timeout(refuse, "asking")
    assert (caught.value.status, caught.value.permanent, caught.value.retry_after) == (403, True, 3)
    with pytest.raises(HubError, match=r"asking: its process died \(-9\)"):
        run_with_timeout(lambda: os.kill(os.getpid(), signal.SIGKILL), "asking")


def test_an_attempt_ends_with_the_process_that_waits_for_it(tmp_path):
    code = (
        "import os, sys, time; from openrlhf_ebpo.hub_client import run_with_timeout\n"
        "def wait():\n    open(sys.argv[1], 'w').write(str(os.getpid()))\n    time.sleep(999)\n"
        "run_with_timeout(wait, 'x')"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "pid")])
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    process.kill()
    process.wait()
    wait_until_gone([int((tmp_path / "pid").read_text())])


def test_an_interrupt_before_an_attempt_is_waited_for_does_not_wait_for_its_end():
    code = (
        "import multiprocessing.process as p, time; from openrlhf_ebpo.hub_client import run_with_timeout\n"
        "def start(process, begin=p.BaseProcess.start):\n    begin(process)\n    raise KeyboardInterrupt\n"
        "p.BaseProcess.start = start\n"
        "run_with_timeout(lambda: time.sleep(999), 'x')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=seconds(30))
    assert "KeyboardInterrupt" in done.stderr


def test_an_interrupt_that_does_not_wake_the_wait_ends_the_attempt(tmp_path):
    """One that comes just before the wait does not: made here by a signal that another thread receives."""

    def interrupt():
        wait_until((tmp_path / "begun").exists)
        os.kill(os.getpid(), signal.SIGINT)

    def attempt():
        (tmp_path / "begun").touch()
        time.sleep(seconds(5))
        (tmp_path / "ended").touch()

    receiver = threading.Thread(target=interrupt)
    receiver.start()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it runs in the background
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with pytest.raises(KeyboardInterrupt):
            run_with_timeout(attempt, "asking")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        receiver.join()
    assert not (tmp_path / "ended").exists()
