"""The Hub in a training: what driver and trainer do. Nothing here may stop a training, and the training waits for its
snapshots alone."""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from openrlhf_ebpo.files import append_json_line, read_json_lines, unlink_shared
from openrlhf_ebpo.hub import outbox
from openrlhf_ebpo.hub.pusher import Keeper
from openrlhf_ebpo.redact import redacted_text
from openrlhf_ebpo.run.run_log import read_metrics


@contextmanager
def never_stops_training() -> Iterator[None]:
    """Turn any error into a line of output."""
    try:
        yield
    except Exception as error:
        print(f"warning: hub: {redacted_text(f'{type(error).__name__}: {error}')}", flush=True)


def queue(args, step: int, model: Path, full_state: list[Path]) -> None:
    """Queue a step; a failure is printed, and counted with the failed pushes."""
    hub, run_dir = args.hub, Path(args.logger.run_dir)
    how = {"repo": hub.repo, "private": hub.private}
    with never_stops_training():
        if full_state and not has_room(run_dir, full_state):
            full_state = []
            words = "without the optimizer's state: the disk is nearly full, and the steps that wait keep deleted checkpoints"
            _note(run_dir, step, words)
            print(f"warning: hub: step {step} goes {words}", flush=True)
        try:
            outbox.add(run_dir, step, model, full_state=full_state, **how)
        except Exception as error:
            _note(run_dir, step, f"never queued: {type(error).__name__}: {error}")
            raise


def _note(run_dir: Path, step: int, words: str) -> None:
    (run_dir / "hub").mkdir(exist_ok=True)
    append_json_line(run_dir / "hub" / "not_queued.jsonl", {"step": step, "error": redacted_text(words)})


def has_room(run_dir: Path, full_state: list[Path]) -> bool:
    """True if the disk holds one more checkpoint that clean-up cannot delete while the Hub is away: a full disk would stop
    the training. True while nothing waits."""
    need = sum(path.stat().st_size for folder in full_state for path in folder.rglob("*") if path.is_file())
    return not outbox.pending(run_dir) or shutil.disk_usage(run_dir).free > 2 * need


class Pushes:
    """The trainer's side: snapshots of what it has saved, metrics and news. Without --hub.repo it only unlinks."""

    def __init__(self, args):
        self.args = args
        self.run_dir = Path(args.logger.run_dir)
        self.seen: dict = {}
        with never_stops_training():
            news(self.run_dir, self.seen)  # of the resumed run: printed before

    def metrics(self) -> dict[str, int]:
        if not self.args.hub.repo:
            return {}
        with never_stops_training():
            print_news(self.run_dir, self.seen)
            return metrics(self.run_dir)
        return {}

    def before_saving(self, step: int) -> None:
        """Unlink files that an earlier snapshot of the step shares, also one of `hub push`: they would be written through."""
        with never_stops_training():
            unlink_shared(self._model(step))

    def queue_saved(self, step: int) -> None:
        ckpt, hub = self.args.ckpt, self.args.hub
        if hub.repo and ckpt.save_hf and step % ckpt.save_steps == 0 and (step // ckpt.save_steps) % hub.every == 0:
            queue(self.args, step, self._model(step), self._checkpoints(step) if hub.full_state else [])

    def _model(self, step: int) -> Path:
        return Path(self.args.ckpt.path) / f"global_step{step}_hf"

    def _checkpoints(self, step: int) -> list[Path]:
        folders = [Path(self.args.ckpt.path) / group / f"global_step{step}" for group in ("_actor", "_critic")]
        return [folder for folder in folders if folder.is_dir()]


def queue_final(args) -> None:
    """Queue the final model, unless its step has been queued already. Called by the driver."""
    if not args.hub.repo:
        return
    with never_stops_training():
        run_dir = Path(args.logger.run_dir)
        step = max((row["step"] for row in read_metrics(run_dir)), default=0)
        entries = outbox.read_state(run_dir)["steps"]
        saved = args.ckpt.save_steps > 0 and step % args.ckpt.save_steps == 0
        pushed = saved and entries.get(str(step), {}).get("state") == "pushed"
        if not pushed and step not in [item.step for item in outbox.items(run_dir)]:
            queue(args, step, Path(args.ckpt.output_dir), [])


def metrics(run_dir: str | Path) -> dict[str, int]:
    """hub/pending: steps that are not pushed yet. hub/failed: attempts that have failed so far."""
    failed = outbox.read_state(run_dir)["failed"] + len(not_queued(run_dir))
    return {"hub/pending": outbox.pending(run_dir), "hub/failed": failed}


def not_queued(run_dir: str | Path) -> list[dict]:
    return read_json_lines(Path(run_dir) / "hub" / "not_queued.jsonl")


def news(run_dir: str | Path, seen: dict) -> list[str]:
    """A line for every step whose push has succeeded or failed since the last call; `seen` remembers."""
    lines = []
    for step, entry in outbox.read_state(run_dir)["steps"].items():
        mark = entry["state"], entry["attempts"], entry.get("token")
        if entry["state"] == "pushing" or seen.get(step) == mark:
            continue
        seen[step] = mark
        if entry["state"] == "pushed":
            lines.append(f"hub: step {step} is pushed and verified: {entry.get('url')}")
        else:
            error = redacted_text(str(entry.get("error")))
            lines.append(f"hub: step {step}: attempt {entry['attempts']} failed, will be repeated: {error}")
    return lines


def print_news(run_dir: Path, seen: dict) -> None:
    for line in news(run_dir, seen):
        print(line, flush=True)


def start_pushing(args) -> Keeper | None:
    """Start the process that pushes, and the thread that restarts it; for `finish`. Called by the driver, whose
    environment has the token."""
    if not args.hub.repo:
        return None
    with never_stops_training():
        keeper = Keeper(Path(args.logger.run_dir), args.hub.wait)
        keeper.start(keeper.run_dir, keeper.seconds)
        keeper.watch()
        return keeper
    return None


# After it


def finish(args, keeper: Keeper | None = None) -> None:
    """Wait until everything is pushed, --hub.wait seconds at most, and print a summary. The run is complete already:
    neither the Hub nor Ctrl-C changes its exit status."""
    if not args.hub.repo:
        return
    with never_stops_training(), suppress(KeyboardInterrupt):
        wait(keeper or Keeper(Path(args.logger.run_dir), args.hub.wait), args.hub.wait)
    with never_stops_training():
        print(*summary(args), sep="\n", flush=True)


def wait(keeper: Keeper, seconds: float) -> None:
    """Wait until everything is pushed, or the time limit has passed."""
    keeper.stop()  # from here on this thread checks
    run_dir, until, seen = keeper.run_dir, time.monotonic() + seconds, {}
    news(run_dir, seen)
    if left := outbox.pending(run_dir):
        words = "step is" if left == 1 else "steps are"
        print(f"hub: {left} {words} still to be pushed; waiting up to {seconds:g} s (Ctrl-C: do not wait)", flush=True)
    while (left := until - time.monotonic()) > 0 and outbox.pending(run_dir):
        keeper.seconds = left
        keeper.check()
        print_news(run_dir, seen)
        time.sleep(0.5)
    print_news(run_dir, seen)


def summary(args) -> list[str]:
    run_dir = Path(args.logger.run_dir)
    steps = outbox.read_state(run_dir)["steps"]
    pushed = [step for step, entry in steps.items() if entry["state"] == "pushed"]
    left = [item.step for item in outbox.items(run_dir)]
    lines = [f"hub: {len(pushed)} pushed and verified at {args.hub.repo}: steps {', '.join(pushed)}"] if pushed else []
    if left:
        errors = [steps.get(str(step), {}).get("error") for step in left]
        why = next((f" ({error})" for error in errors if error), "")
        lines.append(f"hub: not pushed yet: steps {', '.join(map(str, left))}{why}; {how_to_finish(args)}")
    lines += [f"hub: the snapshot {path} is damaged, and is not pushed" for path in outbox.damaged(run_dir)]
    return lines + [f"hub: step {row['step']}, {row['error']}" for row in not_queued(run_dir)]


def how_to_finish(args) -> str:
    return f"finish with: openrlhf-ebpo hub push {shlex.quote(args.logger.run_dir)}"


def when_stopped(args) -> str:
    """A line for the last message of a training that did not complete; empty if nothing waits."""
    left = outbox.pending(args.logger.run_dir) if args.hub.repo else 0
    if not left:
        return ""
    return f"\nhub: {left} saved steps are still being pushed in the background, for {args.hub.wait:g} s; {how_to_finish(args)}"
