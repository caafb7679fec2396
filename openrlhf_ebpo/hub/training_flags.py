"""The Hub's flags of a training, and everything about them that is settled before it starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from openrlhf_ebpo.errors import UsageError, raise_problems
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.content import FULL_STATE
from openrlhf_ebpo.hub.local_files import local_file
from openrlhf_ebpo.hub.model_files import kept_secret
from openrlhf_ebpo.hub.places import place, target
from openrlhf_ebpo.hub.public import public_run
from openrlhf_ebpo.hub.pull import pull, read_record, revision_of
from openrlhf_ebpo.hub.push import check_target
from openrlhf_ebpo.hub_client import HubError, hub_api
from openrlhf_ebpo.run.manifest import MANIFEST
from openrlhf_ebpo.run.resume import groups, newest_complete
from openrlhf_ebpo.run.run_log import PRIOR, read_run

WAIT_SECONDS = 600.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "Hugging Face Hub",
        "Every saved model is pushed in the background, tagged step-000010. The token comes from HF_TOKEN or `hf auth "
        "login`. Training never waits for the Hub; what is not pushed stays in the run directory, for `openrlhf-ebpo hub "
        "push RUN_DIR`.",
    )
    group.add_argument("--hub.repo", metavar="OWNER/NAME", help="push to this model repo, also given by its address")
    group.add_argument(
        "--hub.private",
        type=_boolean,
        nargs="?",
        const=True,
        default=True,
        metavar="true|false",
        help="create a private repo; true if not given. An existing repo keeps its visibility",
    )
    group.add_argument(
        "--hub.every", type=int, default=1, metavar="N", help="push every N-th saved model, and the final one"
    )
    group.add_argument(
        "--hub.full_state",
        action="store_true",
        help=f"push the optimizer's state too, into {FULL_STATE}/: pickles, several times the size of the model",
    )
    group.add_argument(
        "--hub.wait",
        type=float,
        default=WAIT_SECONDS,
        metavar="SECONDS",
        help="how long to wait at the end for what is not pushed yet; the training counts as complete before",
    )
    group.add_argument(
        "--hub.resume_from",
        metavar="OWNER/NAME[@STEP]",
        help="start from weights and prior of a pushed step (a number, a tag, a branch; the newest if not given), which are "
        "pulled into <ckpt.path>/hub, by a dry run too; takes the place of --actor.model_name_or_path. With "
        "--algo.kl.init_coef they are also the reference policy",
    )
    group.add_argument(
        "--hub.trust_pickle",
        action="store_true",
        help="with --hub.resume_from of a run with --hub.full_state: continue with the optimizer's state and step count. "
        "These are pickles: they can run any code of whoever pushed them. --actor.model_name_or_path then names the "
        "reference policy",
    )


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def check_flags(values: dict) -> None:
    """Check the --hub.* flags by themselves; `values` is the flat namespace, in which repos become owner/name[@revision].

    Raises:
        UsageError: all that is wrong with them.
    """
    problems = []
    if values["hub.resume_from"]:
        values["hub.resume_from"] = str(place(values["hub.resume_from"], "--hub.resume_from"))
    if not values["hub.repo"]:
        if values["hub.full_state"]:
            problems.append("--hub.full_state needs --hub.repo owner/name, where to push")
    else:
        values["hub.repo"] = target(values["hub.repo"], "--hub.repo")
        if values["ckpt.save_steps"] > 0 and not values["ckpt.save_hf"]:
            problems.append("--hub.repo pushes models in the Hugging Face format: add --ckpt.save_hf")
        if values["hub.full_state"] and (values["ckpt.disable_ds"] or values["ckpt.save_steps"] <= 0):
            problems.append(
                "--hub.full_state: no optimizer state is saved; set --ckpt.save_steps, without --ckpt.disable_ds"
            )
    if values["hub.every"] < 1:
        problems.append(f"--hub.every is {values['hub.every']}; give 1 or more")
    if values["hub.wait"] < 0:
        problems.append(f"--hub.wait is {values['hub.wait']:g}; give 0 or more seconds")
    if values["hub.trust_pickle"] and not values["hub.resume_from"]:
        problems.append("--hub.trust_pickle belongs to --hub.resume_from owner/name@step")
    raise_problems(problems)


def check_access(values: dict) -> list[str]:
    """Check that the token may write to --hub.repo, and that it holds no other run; returns notices.

    Raises:
        UsageError: a wrong token, missing rights, or another run's repo. A Hub that cannot be reached is a notice.
    """
    if not values["hub.repo"]:
        return []
    resumes = values["ckpt.load_enable"] and not values["force"]
    run = public_run(read_run(Path(values["logger.run_dir"])) or {}) if resumes else {}
    notices = check_target(hub_api(), values["hub.repo"], values["hub.private"], run, "--hub.repo")
    model = values["actor.model_name_or_path"]
    problem = model and kept_secret(model)
    return notices + ([f"warning: what is saved will not be pushed while {problem}"] if problem else [])


def resolve_resume(values: dict) -> list[str]:
    """Pull --hub.resume_from and set the flags that name its files, in place; returns notices.

    Raises:
        UsageError: it cannot be pulled, or clashes with other flags.
    """
    wanted = values["hub.resume_from"]
    if not wanted:
        return []
    repo, named = place(wanted, "--hub.resume_from")
    revision = revision_of(named or "")
    full = values["hub.trust_pickle"]
    if values["actor.model_name_or_path"] and not full:
        raise UsageError(
            f"--hub.resume_from {wanted} and --actor.model_name_or_path {values['actor.model_name_or_path']} both name "
            "the weights to start from: give one of them"
        )
    ckpt = Path(values["ckpt.path"]).expanduser().absolute()
    folder = ckpt / "hub" / f"{repo}@{revision or 'main'}".replace("/", "--")
    own = newest_complete(groups(ckpt, values["algo.advantage.estimator"])).tag
    resumes = (values["ckpt.load_enable"] or full) and own is not None
    notices = _pull_once(repo, revision, folder, wanted, full, resumes)
    if (folder / "adapter_config.json").is_file() and not values["actor.model_name_or_path"]:
        raise UsageError(
            f"--hub.resume_from {wanted} is a LoRA adapter: merge {folder} into its base model and name the result with "
            "--actor.model_name_or_path, or continue with the optimizer's state (--hub.trust_pickle)"
        )
    values["actor.model_name_or_path"] = values["actor.model_name_or_path"] or str(folder)
    prefix = "algo.advantage.ebpo."
    has_prior = (folder / PRIOR).is_file() and registry.computed_here(values["algo.advantage.estimator"])
    if has_prior and not values[prefix + "init_prior"] and not values[prefix + "reset_prior"]:
        values[prefix + "init_prior"] = str(folder / PRIOR)
        notices.append(f"weights and prior are those of {wanted}")
    else:
        notices.append(f"weights are those of {wanted}; the prior is not")
    if full:
        if own is None:
            _place_state(folder, ckpt, wanted)
        values["ckpt.load_enable"] = True
    return notices


def _pull_once(repo: str, revision: str | None, folder: Path, wanted: str, full: bool, resumes: bool) -> list[str]:
    there = (read_record(folder) or {}).get("complete")
    if there and resumes:  # a branch may have moved on since; the reference policy must not
        return [f"{folder}, pulled when the run began, is used as it is"]
    try:
        pull(hub_api(), repo, folder, revision, trust_pickle=full)
    except HubError as error:
        if there and not error.permanent:
            return [f"warning: the Hub cannot be reached ({error}); {folder} was pulled before and is used as it is"]
        raise UsageError(f"--hub.resume_from {wanted}: {error}") from error
    return []


def _turn(path: Path) -> int:
    """The manifest first: without the other files it is that of a damaged checkpoint, which is placed again. They without it
    could pass for one of an earlier version. `latest` comes last."""
    return {MANIFEST: 0, "latest": 2}.get(path.name, 1)


def _place_state(folder: Path, ckpt: Path, wanted: str) -> None:
    """Put the pulled DeepSpeed checkpoint where resuming looks for one."""
    groups = sorted((folder / FULL_STATE).glob("_*"))
    if not groups:
        raise UsageError(
            f"--hub.resume_from {wanted} was pushed without --hub.full_state: leave --hub.trust_pickle out to start from "
            "its weights and prior"
        )
    for group in groups:
        for path in sorted(group.rglob("*"), key=_turn):
            if path.is_file():
                (ckpt / path.relative_to(folder / FULL_STATE)).unlink(missing_ok=True)
                outbox.put(local_file(path, folder), ckpt / path.relative_to(folder / FULL_STATE))
