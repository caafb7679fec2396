"""Answer a name that was withdrawn with one line that says what to do instead: a command, a flag, a value of a flag."""

from __future__ import annotations

COPY = "copy the checkpoint folder (--ckpt.path)"
SCORED_ELSEWHERE = "generate responses with any client, then `openrlhf-ebpo eval score --input FILE`"
CHOICES = "evaluate with lighteval, or give a custom benchmark with its own scorer"
ESTIMATORS = (
    "choose one that `openrlhf-ebpo train --help` lists, or give a class of yours as MODULE:NAME (docs/estimator.md)"
)
PRESET = "name it with the estimator, such as ebpo.robust: --advantage_estimator, `replay --estimator`, adv_estimator"
RETIRED = {
    "explain": "read docs/errors.md; metrics are in docs/runs.md, replaced parts in `python -m openrlhf_ebpo.seams`",
    "openai:": f"give a folder or a name on the Hub; of a model behind a server, {SCORED_ELSEWHERE}",
    "--actor.loss_mean": "leave it out; the loss is one mean over all tokens of an optimizer step, as OpenRLHF has it",
    "--extraction": "leave it out; answers are read from the last box, or else the last Answer: line",
    "released": "use --protocol default, with --n 16 for its number of responses",
    "dapo": "use math, or a .py file with your own reward_func",
    "--umap": "leave it out; K-means takes the embeddings as they are",
    "gym": "make tasks with examples/reasoning_gym/make.py",
    "reasoning_gym": "examples/reasoning_gym has make.py for tasks, and reward.py for --reward.remote_url",
    "gpqa_diamond": CHOICES,
    "multiple choice": CHOICES,
    **dict.fromkeys(("--shots", "--shots_file"), "write the answered questions into `--template TEXT`, with `--stop`"),
    "--strip_think": "leave it out; of a response with </think>, only what follows the last one is read",
    "--logger.keep_rollouts": "--logger.rollouts_every N logs fewer steps",
    "math_agent.py": "give --reward.remote_url math (`data difficulty`: --reward math), which grades in the same way",
    **dict.fromkeys(("--algo.advantage.ebpo.preset", "--preset", "the setting preset"), PRESET),
    **dict.fromkeys(("bnpo", "dbb", "ha_dw", "mc_grpo", "ngrpo", "spo"), ESTIMATORS),
    **dict.fromkeys(("--api_key_env", "--concurrency", "--request_timeout", "--retries"), SCORED_ELSEWHERE),
    "--hub.full_state": f"to continue elsewhere, {COPY}",
    "--full_state": f"to continue elsewhere, {COPY}",
    "--hub.trust_pickle": f"for the optimizer's state, {COPY}",
    **dict.fromkeys(("--allow", "EBPO_SPACE_ALLOW"), "visitors add no repos; name every run with --runs"),
    "--trust_pickle": f"pickles are not pulled; for the optimizer's state, {COPY}",
}


def advice(name: str | None) -> str:
    """Return the line for a name, "" if it was never withdrawn."""
    return f"{name} was withdrawn: {RETIRED[name]}" if name in RETIRED else ""
