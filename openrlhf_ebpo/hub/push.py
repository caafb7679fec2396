"""Push a run's exported models to the Hugging Face Hub, verified file by file, each step under a tag.

Without --repo and --step it pushes every exported model that --hub.repo lacks, oldest first, also after a kill or a
broken connection: files that have arrived are not sent again. With --repo it pushes one saved model of any run.

  openrlhf-ebpo hub push RUN_DIR                                 all that the run's --hub.repo lacks
  openrlhf-ebpo hub push RUN_DIR --dry_run                       list what is missing there
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --dry_run     list what would go
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --step 20     one saved step; the last one without --step
  openrlhf-ebpo hub push RUN_DIR --repo owner/name --public      readable by everybody

Only the files of a model are sent; others are named. A file with a secret in it (a token in tokenizer_config.json)
stops the push, and so does an incomplete model.

The token comes from HF_TOKEN or `hf auth login`. RUN_DIR is a training's --logger.run_dir (<ckpt.output_dir>/run).
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import ReportedError, UsageError
from openrlhf_ebpo.extension import TRUST, trust_models
from openrlhf_ebpo.hub.content import Publishable, local_file, matches
from openrlhf_ebpo.hub.hub_settings import check_target, target
from openrlhf_ebpo.hub.model_files import contents, model_content, print_skipped
from openrlhf_ebpo.hub.public import public_run, step_tag
from openrlhf_ebpo.hub.publish import (
    CARD,
    Commit,
    Owner,
    Repo,
    check_owner,
    compare,
    print_files,
    publish_with_timeout,
    same_run,
)
from openrlhf_ebpo.hub_client import HubError, hub_api, hub_errors, retrying
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.checkpoint_list import final_model, saved_steps
from openrlhf_ebpo.run.resume import BEST
from openrlhf_ebpo.run.run_log import get_nested, read_metrics, read_run

STEP_TAG = re.compile(r"step-\d{6,12}", re.ASCII)

Report = Callable[[str], None]


class Export(NamedTuple):
    """An exported model: the folder of the step's weights."""

    step: int
    model: Path

    def state(self) -> tuple:
        """Names, sizes and times of its files: other ones after it was exported again."""
        files = sorted(path for path in self.model.glob("*") if path.is_file())
        return tuple((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def list_exports(run_dir: Path) -> list[Export]:
    """List every exported model of a run, in the order of the steps: those in checkpoints.jsonl, whatever the flags of
    the start that saved them, and the final one. The best checkpoint's is left out: it makes room for a better one.

    Raises:
        RunDirectoryError: checkpoints.jsonl or run.json is damaged.
    """
    found = {each.step: each.model for each in saved_steps(run_dir) if each.model and not each.tag.startswith(BEST)}
    if final := final_model(run_dir):
        found.setdefault(*final)
    return [Export(step, found[step]) for step in sorted(found)]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", type=Path, metavar="RUN_DIR", help="the run directory, with run.json in it, or the folder it is in"
    )
    parser.add_argument(
        "--repo", metavar="OWNER/NAME", help="model repo to push one step to; created if it does not exist"
    )
    parser.add_argument(
        "--step", type=int, metavar="N", help="push this saved step alone, its card too; with --repo the last one"
    )
    parser.add_argument("--public", action="store_true", help="a repo that is created is public; otherwise private")
    parser.add_argument(
        TRUST, action="store_true", help="also push a model that needs custom code to load; the code does not run here"
    )
    parser.add_argument(
        "--not_secret", nargs="+", default=[], metavar="FILE", help="files that you have checked: they hold no secrets"
    )
    parser.add_argument(
        "--force", action="store_true", help="also replace files of the repo that others have changed since a push"
    )
    parser.add_argument("--dry_run", action="store_true", help="list the files that would go, with sizes, and stop")


def run(args: argparse.Namespace) -> None:
    trust_models(args.trust_remote_code)
    run_dir = next((folder for folder in (args.run_dir, args.run_dir / "run") if read_run(folder)), None)
    if not run_dir:
        raise UsageError(f"{args.run_dir} holds no run.json: name a run directory (a training's --logger.run_dir)")
    run_dir, settings = run_dir.absolute(), read_run(run_dir)
    own = get_nested(settings, "args", "hub", "repo")
    if not (args.repo or (own and isinstance(own, str))):
        raise UsageError(f"{run_dir} was trained without --hub.repo: say where to push, with --repo owner/name")
    repo = Repo(hub_api(), target(args.repo or own))
    public = args.public or bool(not args.repo and get_nested(settings, "args", "hub", "public"))
    wanted = [chosen_export(run_dir, args.step)] if args.repo or args.step is not None else None
    for export in wanted or ():  # mistakes are named before the Hub is asked
        contents(run_dir, export.model, args.not_secret)
    push = Push(run_dir, repo, public, wanted, args.not_secret, args.force, args.dry_run)
    if not args.dry_run:
        print(*check_target(repo, public, push.owner), sep="\n", file=sys.stderr)
    try:
        retrying(push.round)
    except ReportedError as error:
        raise UsageError(f"steps {push.left} are not pushed ({error}): repeat the command to continue") from error
    if not push.sent:
        print(f"nothing is missing: {len(push.done)} steps are at {repo.url()}")


def chosen_export(run_dir: Path, step: int | None) -> Export:
    """The exported model of a step, the last one for None.

    Raises:
        UsageError: it does not exist; names those that do.
    """
    found = {each.step: each for each in list_exports(run_dir)}
    there = [each for each in found if found[each].model.is_dir()]
    wanted = max(there, default=None) if step is None else step
    if wanted in there:
        return found[wanted]
    steps = ", ".join(map(str, there)) or "none: train with --ckpt.save_hf and --ckpt.save_steps"
    if found and not there:
        last = max(found)
        steps = f"none: step {last} was saved in {found[last].model}, which is gone"
    raise UsageError(f"{run_dir}: no saved model{'' if step is None else f' of step {step}'}; saved steps: {steps}")


@dataclass
class Push:
    """A run's pushes to one repo.

    wanted: the exports of --repo or --step, which are pushed even if they are there, for their cards; None for all that
    the repo lacks. done: step -> state of the folder when it was found on the Hub. sent: steps that were pushed now.
    missing: what the last round left. force: also replace what people changed there. dry_run: list what would be sent.
    """

    run_dir: Path
    repo: Repo
    public: bool
    wanted: list[Export] | None = None
    not_secret: Collection[str] = ()
    force: bool = False
    dry_run: bool = False
    report: Report = print
    done: dict[int, tuple] = field(default_factory=dict)
    sent: list[int] = field(default_factory=list)
    missing: list[Export] = field(default_factory=list)

    @property
    def owner(self) -> Owner:
        return same_run(public_run(read_run(self.run_dir) or {}))

    @property
    def left(self) -> str:
        return ", ".join(str(each.step) for each in self.missing)

    def round(self) -> None:
        """Push what is missing, oldest first.

        Raises:
            ReportedError: the last error. A HubError that may pass ends the round, which keeps the order of the steps.
                Any other one, of a step alone, lets the later steps go first.
        """
        every, last = list_exports(self.run_dir) if self.wanted is None else self.wanted, None
        self.missing = list(every)
        known = {}
        if self.wanted is None or not self.dry_run:
            commit, _ = check_owner(self.repo, self.owner)
            with hub_errors(f"listing the tags of {self.repo.name}"):
                refs = self.repo.api.list_repo_refs(self.repo.name).tags if commit else []
                known = {ref.name: ref.target_commit for ref in refs}
        for export in every:
            state = export.state()
            try:
                if self.done.get(export.step) != state or step_tag(export.step) not in known:
                    with hub_errors(f"pushing step {export.step}"):
                        self.push_step(export, known)
            except ReportedError as caught:
                if last:
                    self.report(f"hub: {last}")
                last = caught
                if isinstance(caught, HubError) and not caught.permanent:
                    break
            else:
                self.done[export.step] = state
                self.missing.remove(export)
        if last:
            raise last

    def is_pushed(self, export: Export, known: Mapping[str, str]) -> bool:
        """True if the repo has the step's tag, on a commit with every file of the model as it is here, or as people
        have changed it there (unless `force`). Of a model that was deleted here the tag is enough.

        Args:
            known: tag -> commit.
        """
        commit = known.get(step_tag(export.step))
        if not commit or not export.model.is_dir():
            return bool(commit)
        files = model_content(export.model)
        files.pop(CARD, None)  # its place is the generated card's
        there = {path: entry for path, entry in self.repo.files(commit).items() if path in files}
        changed, _, _ = compare(self.repo, commit, there, files, self.force)
        # --not_secret FILE was sent as it is, and not as the filter makes it
        return all(path in there and matches(local_file(export.model / path), there[path]) for path in changed)

    def push_step(self, export: Export, known: Mapping[str, str]) -> None:
        """Commit a step with its card and tag it, unless the repo has it. An older one than the repo's newest goes to a
        branch: main never moves backwards.

        Raises:
            HubError: the Hub refuses it, cannot be reached, or holds another run; or the model is gone.
        """
        if self.wanted is None and self.is_pushed(export, known):
            return
        if not export.model.is_dir():
            raise HubError(f"{export.model} is gone, and was not pushed", permanent=True)
        step = export.step
        print_skipped(self.run_dir, export.model)
        model = contents(self.run_dir, export.model, self.not_secret)
        all_files = Publishable(model, card(self.run_dir, export, self.repo.name, self.report))
        if self.dry_run:
            print(f"step {step}, tag {step_tag(step)}:")
            print_files(all_files, self.repo.name)
            self.sent.append(step)
            return
        last = max((row["step"] for row in read_metrics(self.run_dir)), default=math.inf)  # later ones are rolled back
        steps = [int(tag.removeprefix("step-")) for tag in known if STEP_TAG.fullmatch(tag)]
        branch = f"checkpoint-{step:06d}" if any(step < each <= last for each in steps) else "main"
        commit = Commit(f"step {step}", self.owner, step_tag(step), branch, not self.public, self.force)
        try:
            publish_with_timeout(self.repo, all_files, commit, self.report)
        except HubError as error:
            if error.status != 400 or model == all_files:
                raise
            self.report(f"hub: step {step} is pushed again without its card, which the Hub may have refused: {error}")
            publish_with_timeout(self.repo, model, commit, self.report)
        self.sent.append(step)


def card(run_dir: Path, export: Export, repo: str, report: Report = print) -> Publishable:
    """Files of the model card; none if it cannot be made, which is reported and must not stop the model."""
    try:
        from openrlhf_ebpo.hub.card import model_card

        return Publishable(model_card(run_dir, export.step, repo, export.model))
    except Exception as error:
        report(
            f"hub: step {export.step} goes without a model card: {type(error).__name__}: {redacted_text(str(error))}"
        )
        return Publishable({})


main = command("openrlhf-ebpo hub push", __doc__, add_flags, run, extra="hub")
