"""A Hub that sends nothing for a while ends an attempt, wherever it does so."""

import json

import hub_runs
import pytest
from hub_runs import publish, pull
from patience import seconds

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.hub_client import HubError, hub_api, retrying

REPO = "owner/model"


@pytest.fixture
def client(hub, monkeypatch):
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(10)))
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_PAUSE", "0.01")
    return hub_api(hub.url, hub.token)


@pytest.fixture
def impatient(client, hub, monkeypatch):
    """Gives up soon, however slow the machine is: for what must fail."""
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", "0.3")
    return hub_api(hub.url, hub.token)


@pytest.fixture
def files(tmp_path):
    model = hub_runs.export_model(tmp_path / "model", 1)
    return {path.name: path for path in model.iterdir() if path.suffix != ".bin"}


@pytest.fixture
def large(files):
    """Half of its weights is more than the client reads at once, and than a buffer of the system holds."""
    files["model.safetensors"].write_bytes(hub_runs.weights(24 << 20))
    return files


@pytest.mark.parametrize("where", [r"^PUT /lfs/", r"GET .*/tree/"])  # others: test_hub_upload.py
def test_a_push_that_stalls_fails_and_a_repetition_completes_it(hub, impatient, large, no_waiting, monkeypatch, where):
    fault = hub.fail(where, stall=True, times=99)
    with pytest.raises(HubError, match=r" owner/model: no usable answer .*[Tt]imed? ?out") as caught:
        publish(impatient, REPO, large, tag="step-000001")
    assert not caught.value.permanent and 1 <= fault.hits <= 6  # the client repeats uploads by itself
    hub.faults.clear()
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(10)))
    publish(hub_api(hub.url, hub.token), REPO, large, tag="step-000001")
    assert hub.repo(REPO).files("step-000001")["model.safetensors"] == large["model.safetensors"].read_bytes()


@pytest.mark.parametrize("where", [r"GET /lfs/", r"HEAD .*/model.safetensors", r"GET .*/resolve/.*/config.json"])
def test_a_pull_that_stalls_resumes(hub, client, large, no_waiting, tmp_path, monkeypatch, where):
    publish(client, REPO, large)
    monkeypatch.setenv("OPENRLHF_EBPO_HUB_TIMEOUT", str(seconds(0.5)))
    client = hub_api(hub.url, hub.token)
    fault = hub.fail(where, **({"hang": True} if "HEAD" in where else {"stall": True}))
    pull(client, REPO, tmp_path / "pulled")
    assert fault.hits
    answers = [len(answer) for answer in hub.answers if len(answer) > 1 << 20]
    # not from the beginning again
    assert "lfs" not in where or (answers[0] == 24 << 20 and sum(answers[1:]) < 24 << 20)
    assert (tmp_path / "pulled" / "model.safetensors").read_bytes() == large["model.safetensors"].read_bytes()


def test_a_pull_whose_every_answer_stalls_fails(hub, client, files, tmp_path, no_waiting, request):
    publish(client, REPO, files)
    hub.fail(r"GET /lfs/", stall=True, times=999)
    with pytest.raises(HubError, match=r" owner/model: no usable answer .*[Tt]imed? ?out"):
        pull(request.getfixturevalue("impatient"), REPO, tmp_path / "pulled")
    assert not (tmp_path / "pulled" / "model.safetensors").exists()


def test_a_file_that_is_longer_than_listed_is_not_taken(hub, client, files, tmp_path, no_waiting):
    publish(client, REPO, files)
    hub.fail(r"GET .*/resolve/.*/config.json", 200, body=b" " * (1 << 20), times=99)
    with pytest.raises(HubError):
        pull(client, REPO, tmp_path / "pulled")
    assert not (tmp_path / "pulled" / "config.json").exists()


def test_a_slow_hub_that_goes_on_is_waited_for(hub, client):
    hub.fail("whoami", 200, body=json.dumps({"name": "owner"}).encode() + b" " * 20, drip=0.001)
    assert client.whoami()["name"] == "owner"


@pytest.mark.parametrize("text", ["abc", "0", "-1", "inf", "nan"])
@pytest.mark.parametrize("variable", ["OPENRLHF_EBPO_HUB_TIMEOUT", "OPENRLHF_EBPO_HUB_PAUSE"])
def test_a_limit_that_is_no_number_is_named(monkeypatch, variable, text):
    def refuse():
        raise HubError("busy", 503)

    monkeypatch.setenv(variable, text)
    with pytest.raises(UsageError, match=f"{variable} is '{text}'"):
        hub_api() if "TIMEOUT" in variable else retrying(refuse)
