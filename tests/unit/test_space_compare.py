"""The page Compare: which two groups and answers stand side by side for whatever a view asks."""

import html
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from space_runs import learning_run

from openrlhf_ebpo.space.links import address, clean, parsed
from openrlhf_ebpo.space.pages.compare import first_side, render, second_side
from openrlhf_ebpo.space.runs import Runs
from openrlhf_ebpo.space.search import history
from openrlhf_ebpo.space.text import HTML
from openrlhf_ebpo.space.workspace import Workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for seed, name, pace in ((1, "a", 1.0), (1, "b", 0.4), (5, "other", 1.0)):
        learning_run(folder / name, steps=12, seed=seed, name=name, prompts=8, pace=pace)
    (folder / "empty").mkdir()
    (folder / "empty" / "metrics.jsonl").write_text('{"step": 1}\n')
    (folder / "bare" / "rollouts").mkdir(parents=True)
    none = pa.array([None, None], pa.float32())
    table = {"group": [0, 0], "prompt": ["p", "p"], "response": [None, "b"], "reward": none}
    (folder / "bare" / "metrics.jsonl").touch()
    pq.write_table(pa.table(table), folder / "bare" / "rollouts" / "step-000001.parquet")
    return Workspace(Runs([str(folder)]))


def show(workspace, **view) -> dict:
    return render(clean({"runs": "a,b", **view}), workspace)


def both(workspace, **asked):
    view = clean({"runs": "a,b,other", **asked})
    keys = workspace.shown(view)
    first = first_side(view, workspace, keys)
    return first, second_side(view, workspace, keys, first)


def settings(found: HTML) -> list[dict]:
    return [json.loads(html.unescape(text)) for text in re.findall(r'data-set="([^"]*)"', str(found))]


def groups_of(workspace, key: str):
    return workspace.index(workspace.open(key)).read()[0]


def came_again(workspace):
    """The groups of run a, the place of the last visit of a prompt that came often, and all its visits."""
    groups = groups_of(workspace, "a")
    visits = max((history(groups, prompt) for prompt in set(groups.prompt_id)), key=len)
    assert len(visits) > 2
    return groups, f"{groups.step[visits[-1]]}.{groups.group[visits[-1]]}", visits


def test_a_prompt_that_came_again_is_shown_with_its_earliest_other_group(workspace):
    groups, place, visits = came_again(workspace)
    first, second = both(workspace, at=place)
    assert first.place == place and second.position == visits[0] != first.position
    assert first.rows[0]["prompt"] == second.rows[0]["prompt"]
    assert both(workspace)[0].position == len(groups) - 1, "the latest if none is asked for"


def test_a_prompt_that_came_once_is_compared_with_itself_by_answers_of_different_reward(workspace):
    groups = groups_of(workspace, "a")
    once = next(
        p
        for p in range(len(groups))
        if 0 < groups.success[p] < 1
        and groups.valid[p] == groups.size[p]
        and len(history(groups, groups.prompt_id[p])) == 1
    )
    first, second = both(workspace, at=f"{groups.step[once]}.{groups.group[once]}", answer=2)
    assert second.position == first.position and (first.picked, second.picked) != (1, 1)
    assert {side.rows[side.picked]["reward"] for side in (first, second)} == {0.0, 1.0}


def test_another_run_shows_the_prompt_at_the_nearest_step(workspace):
    first, second = both(workspace, at="7.3", answer=3, run_b="b")
    assert first.rows[0]["prompt"] == second.rows[0]["prompt"] and second.opened.run.key == "b" and first.picked == 2
    visits = history(second.groups, first.groups.prompt_id[first.position])
    nearest = min(abs(int(second.groups.step[p]) - 7) for p in visits)
    assert abs(int(second.groups.step[second.position]) - 7) == nearest


def test_the_asked_group_and_answer_are_shown_and_the_address_keeps_them(workspace):
    groups, place, visits = came_again(workspace)
    last = visits[-2]
    asked = {"at": place, "at_b": f"{groups.step[last]}.{groups.group[last]}", "pick_b": 99}
    first, second = both(workspace, **asked)
    assert second.position == last and second.picked == 3, "the last answer"
    found = show(workspace, **asked)
    assert found["view"] == {"run": "a", "at": first.place} and not found["notices"]
    view = {**asked, **found["view"]}
    assert show(workspace, **parsed(address(clean({"runs": "a,b", **view}))))["sides"] == found["sides"]
    assert found["sides"].count('class="prompt"') == 1 and found["sides"].count("data-given") == 2
    across = next(each for each in settings(found["sides"]) if each.get("run_b") == "b")
    other = show(workspace, **{**view, **across})
    assert not other["notices"] and other["view"] == found["view"] and other["sides"] != found["sides"]


def test_a_run_without_the_prompt_says_so_and_the_first_group_stays(workspace):
    found = show(workspace, runs="a,other", at="7.3", run_b="other")
    assert "other has no group of this prompt" in found["notices"]
    assert "Step 7" in found["sides"] and "Choose another run" in found["sides"]
    assert {each["run_b"] for each in settings(found["sides"]) if "run_b" in each} == {"a", "other"}


@pytest.mark.parametrize(
    ("view", "said"),
    [({"at": "99.0"}, "no group 99.0 in a"), ({"runs": "empty"}, "no rollouts"), ({"runs": "gone"}, "no run called")],
)
def test_what_is_not_there_is_said(workspace, view, said):
    found = show(workspace, **view)
    assert said in found["notices"] and not found["sides"]


def test_a_run_without_rewards_has_two_answers_too(workspace):
    first, second = both(workspace, runs="bare")
    assert (first.picked, second.picked) == (0, 1) and show(workspace, runs="bare")["sides"]
