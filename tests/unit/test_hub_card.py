"""The model card of a run: what it says, what it must not say, and that its code runs."""

import hashlib
import html
import json
import re
import shutil
from pathlib import Path

import hub_runs
import jinja2
import pytest
import yaml
from huggingface_hub import ModelCard
from recorded_runs import GOOD, GREEDY, POOR, arguments, save_result, write_run
from tiny_tokenizers import CHAT

from openrlhf_ebpo.cli import hub as hub_cli
from openrlhf_ebpo.files import append_json_line, write_json
from openrlhf_ebpo.hub import markdown
from openrlhf_ebpo.hub.card import PICTURE, model_card
from openrlhf_ebpo.hub.markdown import Markdown, code, fenced, fill_template
from openrlhf_ebpo.hub.public import hub_id, public_text
from openrlhf_ebpo.hub.push import Export
from openrlhf_ebpo.rewards.reward_settings import BUILT_IN
from openrlhf_ebpo.run.run_log import read_run

REPO = "owner/tiny"
HOSTILE = "a | b\n---\n# no heading <img src=x onerror=alert(1)> `x` ```\n[l](javascript:alert(1)) {{value}} \u202e"


def text_of(run_dir, step=3, repo=REPO) -> str:
    return model_card(run_dir, step, repo)["README.md"].decode()


def metadata(text: str) -> dict:
    return yaml.safe_load(text.removeprefix("---\n").partition("\n---\n")[0])


def test_a_card_says_what_the_model_is(tmp_path):
    run_dir = write_run(tmp_path)
    files = model_card(run_dir, 3, REPO)
    assert set(files) == {"README.md", PICTURE} and files[PICTURE].startswith(b"\x89PNG")
    assert len(files[PICTURE]) < 200_000
    text = files["README.md"].decode()
    tag = f"ebpo-run-{read_run(run_dir)['id']}"
    assert metadata(text) == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "openrlhf", "ebpo", tag],
    }
    assert f"https://huggingface.co/datasets?other={tag}" in text and "mean reward " in text.split("## Use it")[0]
    for part in ("`base`, trained for 3 steps", "EBPO", f"]({PICTURE})", "--actor.model_name_or_path model"):
        assert part in text
    assert "| responses per prompt (G) | `2` |" in text and "| step | `3` |" in text
    assert "## Evaluation" not in text and "model-index" not in text
    ModelCard(text)  # the Hub's own reader takes it


def test_the_pushed_card_of_the_quickstart_shows_its_result(hub, api, tmp_path):
    run_dir = shutil.copytree(Path(__file__).parents[1] / "data" / "quickstart_run", tmp_path / "run")
    wanted = [Export(120, hub_runs.export_model(tmp_path / "model", 120))]
    hub_runs.push(run_dir, api, repo=REPO, wanted=wanted)
    text = hub.repo(REPO).files("step-000120")["README.md"].decode()
    assert "### Protocol `quickstart`" in text and "| pass@1 before training | pass@1 |" in text
    assert "| `spell_backward` | 256 | 8 | 31.3 ± 0.8 (27.5 to 35.4) | 68.4 ± 0.8 (64.4 to 72.2) |" in text
    (index,) = metadata(text)["model-index"]
    (row,) = index["results"]
    assert {m["type"]: m["value"] for m in row["metrics"]}["pass@1"] == 68.41


def test_an_evaluation_that_came_later_gets_into_the_models_card_by_another_push(tmp_path, hub, use_hub, capsys):
    run_dir = write_run(tmp_path)
    model = hub_runs.export_model(tmp_path / "ckpt" / "global_step3_hf", 3)
    append_json_line(run_dir / "checkpoints.jsonl", {"step": 3, "tag": "global_step3", "model": str(model)})
    hub_cli.main(["push", str(run_dir), "--repo", REPO])
    assert b"model-index" not in hub.repo(REPO).files()["README.md"]
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    hub_cli.main(["push", str(run_dir), "--repo", REPO])
    assert "(1 of " in capsys.readouterr().out.splitlines()[-1]
    card = hub.repo(REPO).files("step-000003")["README.md"]
    (row,) = metadata(card.decode())["model-index"][0]["results"]
    assert row["dataset"]["name"] == "aime24" and row["metrics"][0]["value"] == 66.67


def test_the_card_of_an_earlier_step_knows_nothing_of_later_ones(tmp_path):
    run_dir = write_run(tmp_path)
    earlier = model_card(run_dir, 2, REPO)
    assert "trained for 2 steps" in earlier["README.md"].decode()
    assert earlier[PICTURE] != model_card(run_dir, 3, REPO)[PICTURE]
    assert earlier == model_card(run_dir, 2, REPO)  # the same bytes: nothing is pushed again
    last = text_of(run_dir, 3)
    assert "trained for 3 steps" in last and '"owner/tiny", revision="step-000003"' in last


def test_no_path_of_this_machine_and_no_secret_is_in_it(tmp_path):
    args = arguments(tmp_path)
    args["logger"]["wandb"]["key"] = "0123456789abcdef"  # as an old version might have written it
    args["reward"] = {"remote_url": ["http://me:pa55@host/score", "/data/somebody/my rewards/math.py"]}
    run_dir = write_run(tmp_path, args=args)
    argv = ["--logger.wandb.key", "0123456789abcdef", "--x=/data/somebody/x", "hf_" + "s" * 34]
    write_json(run_dir / "run.json", {**read_run(run_dir), "argv": argv})
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    text = html.unescape(text_of(run_dir))
    for leak in (str(tmp_path), str(tmp_path.parent), "somebody", "0123456789abcdef", "pa55", "ssss", "/data/"):
        assert leak not in text
    assert "`base`" in text and "base_model" not in metadata(text) and "datasets" not in metadata(text)
    assert "--x=x" in text and "math.py" in text


def test_names_of_the_hub_become_metadata(tmp_path):
    args = arguments(tmp_path, prompt_dataset="BytedTsinghua-SIA/DAPO-Math-17k,/data/private/own.jsonl")
    args["actor"]["model_name_or_path"] = "Qwen/Qwen3-8B"
    args["ds"]["lora"]["rank"] = 16
    text = text_of(write_run(tmp_path, args=args))
    found = metadata(text)
    assert found["base_model"] == "Qwen/Qwen3-8B" and found["base_model_relation"] == "adapter"
    assert found["library_name"] == "peft" and found["license_link"].endswith("/Qwen/Qwen3-8B")
    assert found["datasets"] == ["BytedTsinghua-SIA/DAPO-Math-17k"]
    assert "pip install torch transformers accelerate peft" in text
    assert "[`Qwen/Qwen3-8B`](https://huggingface.co/Qwen/Qwen3-8B)" in text and "licence is not known" not in text
    link = "[`BytedTsinghua-SIA/DAPO-Math-17k`](https://huggingface.co/datasets/BytedTsinghua-SIA/DAPO-Math-17k)"
    assert f"| training data | {link}, `own.jsonl` |" in text


def test_the_card_says_how_to_get_data_and_reward_and_on_what_the_run_trained(tmp_path):
    args = arguments(tmp_path)
    (tmp_path / "train.jsonl").write_text("a row\n")
    args["reward"] = {"remote_url": [BUILT_IN["math"]]}
    run_dir = write_run(tmp_path, args=args)
    write_json(run_dir / "run.json", {**read_run(run_dir), "hardware": "8 GPUs (H100)"})
    text = text_of(run_dir)
    digest = hashlib.sha256(b"a row\n").hexdigest()[:16]
    assert f"| training data | `train.jsonl`, a local file that is not published, sha256 {digest} |" in text
    assert "| reward function | `rewards/math/math.py`, part of openrlhf_ebpo |" in text.replace("openrlhf_ebpo/r", "r")
    assert "| hardware | `8 GPUs (H100)` |" in text and re.search(r"\| hours \| `\d", text)
    assert "`base`, which was not loaded from the Hub by OWNER/NAME: the licence is not known here" in text
    assert "license" not in metadata(text)


def test_the_command_to_train_on_takes_the_place_of_what_the_run_began_with(tmp_path):
    run_dir = write_run(tmp_path)
    flags = "--actor.model_name_or_path x --hub.repo=owner/tiny --ckpt.load_step 20 --force"
    flags += " --algo.advantage.ebpo.init_prior prior.json --algo.advantage.ebpo.reset_prior"
    argv = [*flags.split(), "--x", "a b"]
    write_json(run_dir / "run.json", {**read_run(run_dir), "argv": argv})
    text = text_of(run_dir)
    assert "--algo.advantage.ebpo.init_prior model/prior.json --x 'a b'\n" in text


def test_results_of_the_step_with_intervals_a_table_and_a_row_each_protocol(tmp_path):
    run_dir = write_run(tmp_path)
    save_result(run_dir / "eval", "aime24", POOR, 0)
    save_result(run_dir / "eval", "aime24", GOOD, 3)
    save_result(run_dir / "eval", "aime24", GOOD, 3, GREEDY)
    save_result(run_dir / "eval", "amc23", POOR, 2)  # of another step: not this model's
    text = text_of(run_dir)
    assert "pass@1 16.7 → 66.7 % on `aime24`: `base`" in text
    assert "--protocol greedy --tasks aime24" in text
    assert "### Protocol `default`" in text and "### Protocol `greedy`" in text and "amc23" not in text
    assert "| task | questions | runs | pass@1 before training | pass@1 | maj@4 | pass@4 |" in text
    assert re.search(r"\| `aime24` \| 3 \| 4 \| 16\.7 ± \S+ \(\S+ to \S+\) \| 66\.7 ± \S+ \(\S+ to 9\S+\) \|", text)
    (index,) = metadata(text)["model-index"]
    rows = {row["dataset"]["config"]: row for row in index["results"]}
    assert index["name"] == "tiny" and set(rows) == {"default (f00d)", "greedy (beef)"}
    row = rows["default (f00d)"]
    assert row["dataset"]["type"] == "math-ai/aime24" and row["dataset"]["revision"] == "abc"
    assert row["dataset"]["args"]["protocol"] == "default" and row["dataset"]["args"]["temperature"] == 1.0
    assert [metric["type"] for metric in row["metrics"]] == ["pass@1", "maj@4", "pass@4"]
    assert row["metrics"][0]["value"] == 66.67 and row["metrics"][0]["args"]["interval_95"][1] > 90
    low, high = row["metrics"][0]["args"]["run_interval_95"]
    assert 33 < low < 66.67 < high < row["metrics"][0]["args"]["interval_95"][1]
    assert row["metrics"][0]["args"]["samples_per_question"] == 4
    assert [metric["type"] for metric in rows["greedy (beef)"]["metrics"]] == ["pass@1", "maj@1"]
    assert len(ModelCard(text).data.eval_results) == 5


def test_hostile_text_changes_neither_metadata_nor_structure(tmp_path):
    args = arguments(tmp_path, input_template=HOSTILE + "{}", prompt_dataset=HOSTILE)
    args["actor"]["model_name_or_path"] = HOSTILE
    args["algo"]["advantage"]["estimator"] = HOSTILE
    hostile = {**GREEDY, "name": "x|y ` [z](w)", "note": HOSTILE, HOSTILE: HOSTILE}
    run_dir = write_run(tmp_path, prompts=(HOSTILE, HOSTILE), args=args, name=HOSTILE)
    write_json(run_dir / "run.json", {**read_run(run_dir), "versions": {HOSTILE: HOSTILE}})
    folder = save_result(run_dir / "eval", "t|`<b>", GOOD, 3, hostile)
    summary = json.loads((folder / "summary.json").read_text())
    summary["metrics"] |= {f"pass@{HOSTILE}": summary["metrics"]["pass@1"], "pass@²": summary["metrics"]["pass@1"]}
    write_json(folder / "summary.json", summary)
    text = text_of(run_dir)
    assert set(metadata(text)) == {"library_name", "pipeline_tag", "tags", "model-index"}
    assert ModelCard(text).data.library_name == "transformers"
    body = text.split("\n---\n", 1)[1]
    prose = re.sub(r"(?ms)^(`{3,})\w+\n.*?^\1$", "", body)
    shown = re.sub(r"`[^`\n]+`", "", prose)  # what is not code
    assert "<img" not in shown and "](javascript" not in shown and "{{" not in shown and "\u202e" not in body
    assert "# no heading" not in re.findall(r"(?m)^#+ .*", prose)
    for block in re.findall(r"(?m)(?:^\|.*\n)+", prose):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1, block


@pytest.mark.parametrize(
    "value", ["plain", "a|b", "a\\|b", "``", "`", " x ", "", "a\nb", "<b>", "$x$", "http://x.y", "é ü", "*" * 999]
)
def test_code_is_one_cell_whatever_is_in_it(value):
    cell = code(value)
    assert "\n" not in cell and len(cell) < 3000
    assert "|" not in cell
    inner = re.fullmatch(r"`([^`|\\]+)`|<code>((?:[\w ]|&#\d+;)*)</code>", cell)
    assert inner, cell


@pytest.mark.parametrize("value", [HOSTILE, "*b*", "[l](x)", "# h", " ", 1.5, None, ["a"]])
def test_what_is_not_ours_is_code_in_templates(tmp_path, monkeypatch, value):
    (tmp_path / "card.md").write_text("{{ x }} {{ y }}{% for each in many %}{{ each ~ '!' }}{% endfor %}.\n")
    monkeypatch.setattr(markdown, "TEMPLATES", tmp_path)
    expected = f"{code(value)} *b*{code(f'{value}!')}.\n"
    assert fill_template("card.md", x=value, y=Markdown("*b*"), many=[value]) == expected
    with pytest.raises(jinja2.UndefinedError, match="'y' is undefined"):
        fill_template("card.md", x=value, many=[])


def test_a_fence_is_longer_than_what_is_inside():
    assert fenced("bash", "a ```\n```\n````") == "`````bash\na ```\n```\n````\n`````"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/me/models/base", "base"),
        ("/data/me/my models/base/", "base"),
        ("~/runs/x", "x"),
        ("file:///data/x/y.py", "y.py"),
        ("cannot read /data/me/run/x.json: gone", "cannot read x.json: gone"),
        ("http://host:80/a/b/c", "http://host:80/a/b/c"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("runs/x/model", "runs/x/model"),
        ("{}\n</think>\n", "{}\n</think>\n"),
        ("and/or/not", "and/or/not"),
        ("\\frac{a}/b/c", "\\frac{a}/b/c"),
    ],
)
def test_local_paths_are_cut_and_nothing_else(text, expected):
    assert public_text(text) == expected


def test_a_folder_is_no_name_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "models" / "base").mkdir(parents=True)
    assert hub_id("models/base") == "models/base"
    assert hub_id("models/base", tmp_path / "out" / "run") is None
    monkeypatch.chdir(tmp_path)
    assert hub_id("models/base") is None
    for name in ("/models/base", "../base", "a/b/c", "base", "", None, "a/b\n", "a/ b"):
        assert hub_id(name) is None


def snippet_of(text: str) -> str:
    return re.search(r"```python\n(.*?)```", text, re.S)[1]


def test_the_model_is_asked_in_the_form_of_its_training(tmp_path):
    text = text_of(write_run(tmp_path, prompts=("Q: 2 + 2?\n", "Q: 1?\n"), args=asked(tmp_path, "Q: {}\n")))
    assert 'question = "2 + 2?"\nmessage = question\nprompt = "Q: {}\\n".format(message)' in snippet_of(text)
    assert "as the model read it:\n\n```text\nQ: 2 + 2?\n```" in text
    args = asked(tmp_path, None, apply_chat_template=True, template_kwargs=["enable_thinking=false"])
    snippet = snippet_of(text_of(write_run(tmp_path / "chat", args=args)))
    assert "apply_chat_template(" in snippet and "enable_thinking=False)" in snippet and "system" not in snippet
    args["ds"]["lora"]["rank"] = 16
    text = text_of(write_run(tmp_path / "adapter", args=args))
    assert "is a local folder that is not on the Hub" in text and "from transformers" not in text


def asked(tmp_path, template, **data):
    args = arguments(tmp_path)
    args["data"] |= {"input_template": template, "apply_chat_template": False, **data}
    args["rollout"]["max_new_tokens"] = 3
    return args


@pytest.mark.nightly  # daily: unit/test_hub_card.py itself: the test before compares the text
@pytest.mark.parametrize("instructed", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_the_snippet_runs_with_the_pulled_model_and_asks_what_the_training_asked(
    tmp_path, hub, use_hub, capsys, chat, instructed
):
    from openrlhf_ebpo.quickstart import tiny_model

    asks = "now 2 + 2?" if instructed else "2 + 2?"
    system = "<system>a calculator<turn_end>" if instructed else ""
    prompt = f"{system}<user>{asks}<turn_end><assistant>" if chat else f"{asks}\n"
    args = asked(tmp_path, None if chat else "{}\n", apply_chat_template=chat)
    run_dir = write_run(tmp_path, prompts=(prompt, prompt), args=args)
    if instructed:
        instruction = {"template": "now {question}", "system": "a calculator"}
        write_json(run_dir / "run.json", {**read_run(run_dir), "instruction": instruction})
    model = tmp_path / "ckpt" / "global_step3_hf"
    tiny_model.build(model, ["abcdefghijklmnopqrstuvwxyz +W? 0123456789*<_>\n"])
    (model / "chat_template.jinja").write_text(CHAT)
    append_json_line(run_dir / "checkpoints.jsonl", {"step": 3, "tag": "global_step3", "model": str(model)})
    hub_cli.main(["push", str(run_dir), "--repo", REPO])
    hub_cli.main(["pull", REPO, str(tmp_path / "pulled")])
    snippet = snippet_of((tmp_path / "pulled" / "README.md").read_text())
    local = snippet.replace('"owner/tiny"', repr(str(tmp_path / "pulled"))).replace(', device_map="auto"', "")
    names = {}
    capsys.readouterr()
    exec(local.replace('"What is 12 * 13?"', '"2 + 2?"'), names)
    assert names["prompt"] == prompt and capsys.readouterr().out


def test_a_run_that_has_just_begun_has_a_card_without_a_picture(tmp_path):
    run_dir = write_run(tmp_path, steps=1)
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "rollout/rew')
    files = model_card(run_dir, 1, REPO)
    assert set(files) == {"README.md"} and "images/" not in files["README.md"].decode()


@pytest.mark.parametrize(
    ("estimator", "title", "state"),
    [
        ("ebpo", "EBPO ([arXiv 2602.05165](https://arxiv.org/abs/2602.05165))", "shrinks each prompt's mean"),
        ("group_norm", "GRPO ([arXiv 2402.03300](https://arxiv.org/abs/2402.03300))", None),
        ("reinforce_baseline", "REINFORCE++-baseline ([arXiv", None),
        ("flash_reinforce", "FlashREINFORCE, by", None),
        ("my_package.mine:Mine", "`my_package.mine:Mine`, by", "what that estimator keeps from step to step"),
    ],
)
def test_the_estimator_has_its_name_and_its_state_a_place(tmp_path, estimator, title, state):
    args = arguments(tmp_path)
    args["algo"]["advantage"]["estimator"] = estimator
    text = text_of(write_run(tmp_path, args=args))
    assert f"with the advantage estimator {title}" in text
    assert ("## prior.json" in text) == ("and their prior" in text) == bool(state)
    assert state is None or state in text
