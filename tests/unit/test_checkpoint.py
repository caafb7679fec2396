"""Old checkpoints make room in order, and a run begins with the right prior."""

import json

import pytest
from checkpoints import save_checkpoint

from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.prior import Prior
from openrlhf_ebpo.estimator.stored import PriorMismatch, pack, unpack
from openrlhf_ebpo.run.resume import groups, newest_complete
from openrlhf_ebpo.run.run_log import read_prior
from openrlhf_ebpo.upstream.policy.rotation import SavedCheckpoint, checkpoints_to_delete
from openrlhf_ebpo.upstream.saving import STATE_KEY, starting_state

UNLIMITED = float("inf")


def saved(*rows):
    """(tag, metric, modified) with a size of 10 each."""
    return [SavedCheckpoint(tag, metric, modified, 10) for tag, metric, modified in rows]


PLAIN = saved(("s1", None, 1), ("s2", None, 2), ("s3", None, 3), ("s4", None, 4))
MEASURED = saved(("s1", 0.9, 1), ("s2", 0.1, 2), ("s3", None, 3), ("s4", 0.5, 4), ("s5", 0.1, 5))
WITH_BEST = saved(("s1", None, 1), ("best_global_step1", 0.4, 1), ("s2", None, 2), ("best_global_step2", 0.6, 2))


@pytest.mark.parametrize(
    ("checkpoints", "new", "max_num", "max_bytes", "deleted"),
    [
        (PLAIN, "s4", 4, UNLIMITED, []),
        (PLAIN, "s4", 3, UNLIMITED, ["s1"]),
        (PLAIN, "s4", 1, UNLIMITED, ["s1", "s2", "s3"]),
        (PLAIN, "s1", 2, UNLIMITED, ["s2", "s3"]),  # the new one stays, however old its folder looks
        (PLAIN, "s4", 0, UNLIMITED, ["s1", "s2", "s3"]),
        (PLAIN, "s4", 9, 25, ["s1", "s2"]),
        (PLAIN, "s4", 9, 5, ["s1", "s2", "s3"]),  # never the new one, even if it alone is too large
        (MEASURED, "s5", 4, UNLIMITED, ["s3"]),  # without a metric first,
        (MEASURED, "s5", 3, UNLIMITED, ["s3", "s2"]),  # then the worst
        (MEASURED, "s4", 2, UNLIMITED, ["s3", "s2", "s5"]),  # of two equal ones the older
        (WITH_BEST, "best_global_step2", 1, UNLIMITED, ["best_global_step1"]),
        (WITH_BEST, "s2", 1, UNLIMITED, ["s1"]),  # a best one counts for the size alone
        (WITH_BEST, "s2", 2, UNLIMITED, []),
        (WITH_BEST, "s2", 9, 35, ["s1"]),
        (WITH_BEST, "best_global_step2", 9, 25, ["best_global_step1", "s1"]),
        ([], "s1", 3, UNLIMITED, []),
    ],
)
def test_the_policy_of_what_goes(checkpoints, new, max_num, max_bytes, deleted):
    assert checkpoints_to_delete(checkpoints, new, max_num, max_bytes) == deleted
    assert checkpoints_to_delete(reversed(checkpoints), new, max_num, max_bytes) == deleted


def test_a_run_that_began_anew_beside_others_deletes_none_of_a_later_step():
    others = saved(("global_step20", None, 1), ("best_global_step20", 0.9, 1), ("global_step24", None, 2))
    own = saved(("global_step3", None, 3), ("global_step6", None, 4), ("best_global_step6", 0.1, 4))
    assert checkpoints_to_delete(others + own, "global_step6", 1, 0) == ["global_step3"]
    assert checkpoints_to_delete(others + own, "best_global_step6", 9, UNLIMITED) == []
    later = saved(("global_step27", None, 5))
    assert set(checkpoints_to_delete(others + later, "global_step27", 1, UNLIMITED)) == {
        "global_step20",
        "global_step24",
    }


OWN = Prior.of([1.0, 0.0], [0.5])
OTHER = Prior.of([1.0, 1.0, 0.0], [2 / 3])


def ebpo(n_samples_per_prompt: int = 4, **settings) -> EBPO:
    return EBPO(EstimatorConfig(n_samples_per_prompt, **settings))


@pytest.fixture
def other_file(tmp_path):
    path = tmp_path / "prior.json"
    path.write_text(json.dumps(pack(ebpo(), OTHER)))
    return str(path)


def states(step: int, **extra) -> dict:
    return {"global_step": step, **extra}


RESUMED = states(5, **{STATE_KEY: pack(ebpo(), OWN)})


FOREIGN = states(5, **{STATE_KEY: {"schema": 99}})


@pytest.mark.parametrize(
    ("saved", "names_a_prior", "resets", "begins_with"),
    [
        ({}, False, False, Prior()),
        (states(0), False, False, Prior()),
        (states(0), True, False, OTHER),
        (RESUMED, False, False, OWN),
        (RESUMED, True, False, OWN),  # a named prior is for the start
        (RESUMED, False, True, Prior()),
        (RESUMED, True, True, OTHER),
        (FOREIGN, False, True, Prior()),
        (states(5), False, True, Prior()),
        (states(5), True, False, OTHER),  # saved by another estimator
    ],
)
def test_a_run_begins_with_the_right_prior(other_file, saved, names_a_prior, resets, begins_with):
    estimator = ebpo(init_prior=other_file if names_a_prior else None, reset_prior=resets)
    assert starting_state(saved, estimator, "c") == begins_with


def test_a_checkpoint_without_a_prior_is_an_error():
    with pytest.raises(PriorMismatch, match=r"the checkpoint in c was saved by another estimator.*reset_prior"):
        starting_state(states(5), ebpo(), "c")


def checkpoint_folder(tmp_path, step: int, prior: str):
    folder = save_checkpoint(tmp_path, step, b"weights")
    (folder / "prior.json").write_text(prior)
    return folder


def prior_in(ckpt_path):
    found = newest_complete(groups(ckpt_path, "ebpo"), contents=True)
    return found.tag and read_prior(found.folders[0] / found.tag)


def test_the_stored_prior_is_that_of_the_newest_whole_checkpoint(tmp_path):
    assert prior_in(tmp_path) is None
    for step, prior in ((3, OWN), (12, OTHER)):
        folder = checkpoint_folder(tmp_path, step, json.dumps(pack(ebpo(), prior)))
    assert unpack(ebpo(), prior_in(tmp_path)) == OTHER
    (folder / "mp_rank_00_model_states.pt").write_text("weig")
    assert unpack(ebpo(), prior_in(tmp_path)) == OWN


def test_a_damaged_prior_beside_a_checkpoint_is_no_traceback(tmp_path):
    """The copy inside the checkpoint is the one that counts."""
    checkpoint_folder(tmp_path, 3, '{"schema": 1, "id')
    assert prior_in(tmp_path) is None
