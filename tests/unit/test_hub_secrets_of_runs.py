"""Secrets and strangers in runs, results and the Space: they never get to the Hub, against the unmodified client."""

import argparse
import io
import itertools
import json
import re
from pathlib import Path

import hub_runs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_secrets import FORMS, TOKENIZER, leaked, received, secrets
from recorded_runs import GOOD, PROTOCOL, arguments, save_result, write_run

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub import run_data, space
from openrlhf_ebpo.hub.exports import Export
from openrlhf_ebpo.hub.model_files import contents
from openrlhf_ebpo.run.run_log import close_run, read_run

MODEL, RUN, SPACE = "owner/model", "owner/run", "owner/space"


@pytest.fixture
def commands(api, use_hub, no_waiting, monkeypatch):
    for module in ("openrlhf_ebpo.hub.run_data", "openrlhf_ebpo.hub.space"):
        monkeypatch.setattr(f"{module}.hub_api", lambda: api)
    return use_hub


def call(module, *argv):
    parser = argparse.ArgumentParser()
    module.add_flags(parser)
    module.run(parser.parse_args(list(map(str, argv))))


def push_run(run_dir, *flags):
    call(run_data, run_dir, "--repo", RUN, *flags)


@pytest.mark.parametrize(
    "place",
    [
        "run.json",
        "metrics.jsonl",
        "prior.json",
        "rollouts",
        "rollouts/step-000002.parquet",
        "eval",
        "eval/default",
        "eval/default/aime24/step-000003/samples.parquet",
    ],
)
def test_links_out_of_a_run_are_refused(tmp_path, hub, commands, place):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    (run_dir / place).rename(tmp_path / "elsewhere")
    (run_dir / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="outside of"):
        push_run(run_dir)
    assert not hub.repos


def test_strangers_in_a_run_stay_and_are_named(tmp_path, hub, commands, capsys):
    run_dir = write_run(tmp_path)
    for name in (
        "notes.txt",
        ".env",
        "rollouts/step-x.parquet",
        "rollouts/.step-000009.parquet",
        "superseded/secret",
        "failed_step-000012/report.json",
        "failed_step-000012.2/rollouts.parquet",
        "heartbeat.json",
        "training.lock",
        "notes.jsonl",
        "eval/default/aime24/step-000003/notes.txt",
    ):
        (run_dir / name).parent.mkdir(exist_ok=True, parents=True)
        (run_dir / name).write_text("NEEDLE")
    push_run(run_dir)
    (said,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("left out")]
    assert said.endswith(
        ": .env, eval/default/aime24/step-000003/notes.txt, notes.jsonl, notes.txt, rollouts/.step-000009.parquet, "
        "rollouts/step-x.parquet"
    )
    assert not leaked(hub, ["NEEDLE"])


def test_columns_that_nobody_knows_and_notes_in_tables_stay(tmp_path, hub, commands):
    run_dir = write_run(tmp_path, steps=1)
    path = run_dir / "rollouts" / "step-000001.parquet"
    table = pq.read_table(path)
    table = table.append_column("password", pa.array(["NEEDLE1"] * len(table)))
    label = pa.array([["NEEDLE2"]] * len(table))
    table = table.set_column(table.column_names.index("label"), "label", label)
    table = table.set_column(table.column_names.index("cluster"), "cluster", table["prompt"].dictionary_encode())
    pq.write_table(table.replace_schema_metadata({"note": "NEEDLE3"}), path)
    push_run(run_dir)
    published = pq.read_table(pa.BufferReader(hub.repo(RUN, "dataset").files()["rollouts/step-000001.parquet"]))
    assert published["cluster"].to_pylist() == published["prompt"].to_pylist() == table["prompt"].to_pylist()
    assert not {"password", "label"} & set(published.column_names) and not leaked(hub, ["NEEDLE"])


def test_prompts_keep_addresses_and_paths_but_no_secrets(tmp_path, hub, commands):
    plain = "see https://host.test/a?b=c in /data/x/y"
    secret = "sk" + "-ant-" + "NEEDLE" * 5
    run_dir = write_run(tmp_path, prompts=(plain, f"{plain} {secret}"), steps=1)
    push_run(run_dir)
    content = hub.repo(RUN, "dataset").files()["rollouts/step-000001.parquet"]
    assert set(pq.read_table(io.BytesIO(content))["prompt"].to_pylist()) == {plain, f"{plain} <redacted>"}


def test_a_file_of_the_package_with_a_secret_keeps_the_space_from_going(tmp_path, hub, commands, monkeypatch):
    token = "hf" + "_" + "NEEDLE" * 6
    push_run(write_run(tmp_path / "shown"))
    monkeypatch.setattr(space, "package_files", lambda: {"x/y.py": f"x = 1\nTOKEN = {token!r}".encode()})
    with pytest.raises(UsageError, match=r"x/y\.py, line 2, holds"):
        call(space, SPACE, "--runs", RUN)
    assert ("space", SPACE) not in hub.repos and not leaked(hub, ["NEEDLE"])


def test_run_json_keeps_no_address_of_an_error(tmp_path):
    run_dir = write_run(tmp_path)
    close_run(run_dir, "failed", "ConnectionError: http://host/reward?token=NEEDLE refused")
    assert read_run(run_dir)["error"] == "ConnectionError: http://host/reward refused"


# Everything at once


STAYS = {"status", "estimator", "output_dir", "path", "run_dir", "preset", "model_name_or_path", "model", "checkpoint"}


def filled(value, secret, key=""):
    """`value` with a secret of its own in every text (paths that must lead somewhere are left alone), and a plain one
    under the name of a secret."""
    if isinstance(value, dict):
        return {k: filled(v, secret, k) for k, v in value.items()} | {"api_key": next(secret).split("/")[-1]}
    if isinstance(value, list):
        return [filled(each, secret, key) for each in value]
    return f"{value} {next(secret)}" if isinstance(value, str) and key not in STAYS else value


def fill(path: Path, secret) -> None:
    write_json(path, filled(json.loads(path.read_text()), secret))


def folder_name(secret) -> str:
    """A secret that can be a folder's name and, as a part of a path, stays whole."""
    return next(each for each in secret if re.fullmatch(r"(hf_|sk-|gh|AK|AI|xo)[\w.-]+", each))


def test_of_a_run_full_of_secrets_none_gets_to_the_hub(tmp_path, hub, api, commands, no_waiting):
    found: list[str] = []
    secret = secrets(found)
    folder = tmp_path / folder_name(secret)
    base = folder / folder_name(secret)
    base.mkdir(parents=True)
    (base / "README.md").write_text(f"---\nlicense: other\nlicense_name: x {folder_name(secret)}\n---\n")
    args = arguments(folder)
    args["actor"]["model_name_or_path"] = str(base)
    args["reward"] = {"remote_url": [f"http://host.test/reward?token={found.append('QUERY-SECRET') or 'QUERY-SECRET'}"]}
    errors = " ".join(itertools.islice(secret, len(FORMS)))
    prompts = tuple(" ".join(itertools.islice(secret, len(FORMS))) for _ in range(2))
    run_dir = write_run(folder, prompts=prompts, error=f"failed: /reward?sig=QUERY-SECRET {errors}", args=args)
    run = json.loads((run_dir / "run.json").read_text())
    run = filled(run, secret) | {"argv": [*run["argv"], "--reward.remote_url=http://h/x?a=QUERY-SECRET", next(secret)]}
    write_json(run_dir / "run.json", run)
    append_json_line(
        run_dir / "metrics.jsonl", filled({"step": 3, "note": "x", f"eval_{folder_name(secret)}_pass1": 1.0}, secret)
    )
    fill(run_dir / "prior.json", secret)
    task, protocol = folder_name(secret), {**PROTOCOL, "name": folder_name(secret)}
    place = save_result(run_dir / "eval", task, GOOD, 3, protocol, error="x")
    fill(place / "summary.json", secret)

    model = hub_runs.export_model(folder / "ckpt" / "global_step3_hf", 3)
    write_json(model / "train_args.json", filled(args, secret))
    (model / ".env").write_text(next(secret))
    append_json_line(
        run_dir / "checkpoints.jsonl", {"step": 3, "tag": next(secret), "model": str(model), "complete": True}
    )
    for name, content in (("tokenizer_config.json", filled(TOKENIZER, secret)), ("README.md", next(secret))):
        (model / name).write_text(json.dumps(content))
        with pytest.raises(UsageError, match=f"{name}.*secret"):
            contents(run_dir, model)
        (model / name).unlink()

    hub_runs.push(run_dir, api, repo=MODEL, wanted=[Export(3, model)])
    push_run(run_dir)
    hub_runs.publish(api, MODEL, {"x.txt": b"x"}, message=f"step of {next(secret)}")

    assert {MODEL, RUN} <= {name for _, name in hub.repos}
    assert len(hub.repo(MODEL).tags) == 1 and b"model-index" in hub.repo(MODEL).files()["README.md"]
    assert len(found) > 150 and leaked(hub, found) == []
    assert str(folder.parent).encode() not in received(hub)
