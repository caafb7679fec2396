"""A Hub that stands still, or trickles, ends an attempt after one limit, wherever it does so."""

import json

import hub_runs
import pytest

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub.pull import pull
from openrlhf_ebpo.hub.upload import publish
from openrlhf_ebpo.models.hub_client import HubError, hub_api, hub_errors
from openrlhf_ebpo.models.hub_transport import Line

REPO = "owner/model"
STILL = [{"stall": True}, {"drip": 0.05}]  # 20 bytes a second


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", "0.4")
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")
    return hub_api(hub.url, hub.token)


@pytest.fixture
def files(tmp_path):
    """A model that no buffer of the operating system holds whole."""
    model = hub_runs.export_model(tmp_path / "model", 1)
    (model / "model.safetensors").write_bytes(hub_runs.weights(24 << 20))
    return {path.name: path for path in model.iterdir() if path.suffix != ".bin"}


@pytest.mark.parametrize("how", STILL, ids=["stall", "drip"])
@pytest.mark.parametrize("where", [r"^PUT /lfs/", r"POST .*/commit/", r"GET .*/tree/", r"GET .*/revision/"])
def test_a_push_that_stands_still_is_tried_once_and_a_repetition_completes_it(
    hub, client, files, no_waiting, where, how
):
    fault = hub.fail(where, **how, times=99)
    with pytest.raises(HubError, match=r"pushing to owner/model: no usable answer .timed out: ") as caught:
        publish(client, REPO, files, message="m", tag="step-000001")
    assert not caught.value.permanent and fault.hits == 1 and no_waiting == []
    hub.faults.clear()
    publish(client, REPO, files, message="m", tag="step-000001")
    assert hub.repo(REPO).files("step-000001")["model.safetensors"] == files["model.safetensors"].read_bytes()


@pytest.mark.parametrize("how", STILL, ids=["stall", "drip"])
@pytest.mark.parametrize("where", [r"GET /lfs/", r"HEAD .*/model.safetensors", r"GET .*/resolve/.*/config.json"])
def test_a_pull_that_stands_still_goes_on_where_it_stopped(hub, client, files, no_waiting, tmp_path, where, how):
    publish(client, REPO, files, message="m")
    if "HEAD" in where and "stall" in how:
        how = {"hang": True}
    fault, resumed = hub.fail(where, **how), "lfs" in where and "stall" in how
    said = []
    pull(client, REPO, tmp_path / "pulled", report=said.append)
    assert fault.hits and no_waiting == []
    assert [line for line in said if "timed out" not in line] == [] and len(said) == (0 if resumed else 1)
    answers = [len(answer) for answer in hub.answers if len(answer) > 1 << 20]
    assert not resumed or answers == [24 << 20, (24 << 20) - (10 << 20)]
    assert (tmp_path / "pulled" / "model.safetensors").read_bytes() == files["model.safetensors"].read_bytes()


def test_a_pull_whose_every_answer_stands_still_fails_after_its_own_attempts_alone(hub, client, files, tmp_path):
    publish(client, REPO, files, message="m")
    fault = hub.fail(r"GET /lfs/", stall=True, times=99)
    with pytest.raises(HubError, match=r"pulling model\.safetensors of owner/model: no usable answer .timed out"):
        pull(client, REPO, tmp_path / "pulled", report=lambda *_: None)
    assert fault.hits == 5 * 2  # half came, which was kept; then a quarter, too little for another request
    assert not (tmp_path / "pulled" / "model.safetensors").exists()


def test_a_slow_hub_that_goes_on_is_waited_for(hub, client):
    hub.fail("whoami", 200, body=json.dumps({"name": "owner"}).encode() + b" " * 20, drip=0.001)
    assert client.whoami()["name"] == "owner"


@pytest.mark.parametrize("headers", [{"Retry-After": "86400"}, {"RateLimit": '"api";r=0;t=86400'}])
def test_the_client_does_not_sleep_as_long_as_a_header_says(hub, client, no_waiting, headers):
    hub.create(REPO)
    fault = hub.fail(r"POST .*/preupload/", 429, headers=headers, times=99)
    with pytest.raises(HubError, match="too many requests") as caught:
        publish(client, REPO, {"config.json": b"{}"}, message="m")
    assert caught.value.retry_after == 86400 and fault.hits == 1 and no_waiting == []


def test_a_listing_that_never_ends_is_no_listing(hub, client, monkeypatch):
    monkeypatch.setattr("openrlhf_ebpo.hub.upload.MOST_FILES", 30)
    hub.create(REPO)
    page = [{"type": "file", "path": f"{i}.json", "size": 1, "oid": "0" * 40} for i in range(8)]
    again = {"Link": f'<{hub.url}/api/models/{REPO}/tree/main?recursive=true&cursor=1>; rel="next"'}
    hub.fail(r"GET .*/tree/", 200, body=json.dumps(page).encode(), headers=again, times=99)
    with pytest.raises(HubError, match="more than 30 files") as caught:
        publish(client, REPO, {"config.json": b"{}"}, message="m")
    assert caught.value.permanent


@pytest.mark.parametrize("text", ["abc", "0", "-1", "inf", "nan"])
@pytest.mark.parametrize("variable", ["OPENRLHF_EBPO_HUB_TIMEOUT", "OPENRLHF_EBPO_HUB_PAUSE"])
def test_a_limit_that_is_no_number_is_named(monkeypatch, variable, text):
    from openrlhf_ebpo.hub.retry import pause_after

    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=f"{variable} is '{text}'"):
        hub_api() if "TIMEOUT" in variable else pause_after(1)


def test_waiting_counts_from_each_request_on(monkeypatch):
    """Many requests on one connection, each with a small answer, are no trickle."""
    clock = [0.0]
    monkeypatch.setattr("openrlhf_ebpo.models.hub_transport.time.monotonic", lambda: clock[0])

    class Stream:
        def read(self, max_bytes, timeout):
            clock[0] += 30.0
            return b"{}"

        def write(self, buffer, timeout):
            pass

    line = Line(Stream(), 60.0)
    for _ in range(9):
        line.write(b"GET /")
        assert line.read(100) == b"{}"
    line.write(b"GET /")
    line.read(100)
    with pytest.raises(Exception, match="9 bytes in 60 s"), hub_errors("asking"):
        line.read(100)
