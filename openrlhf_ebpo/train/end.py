"""The end of a training in its driver: recorded, explained, and with the way to continue."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator

from openrlhf_ebpo.command import PAUSED
from openrlhf_ebpo.errors import HealthError, ReportedError, TrainingPaused, UsageError
from openrlhf_ebpo.run.resume import CheckpointError
from openrlhf_ebpo.run.run_log import RunDirectoryError
from openrlhf_ebpo.train.supervisor.link import SupervisorLink


@contextlib.contextmanager
def recorded_end(supervisor: SupervisorLink, how_to_continue: Callable[[], str]) -> Iterator[None]:
    """Record how a training ended, and turn what has ended it into a message that says how to continue; a pause exits
    with PAUSED.

    Raises:
        ReportedError: the training has failed. KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        supervisor.end("interrupted", describe_cause(error), final=True)
        raise KeyboardInterrupt(how_to_continue()) from None
    except BaseException as error:
        cause, text = first_cause(error), describe_cause(error)
        if isinstance(cause, TrainingPaused):
            supervisor.end("paused", text, final=True)
            print(f"paused: {text}\n{how_to_continue()}", file=sys.stderr)
            sys.exit(PAUSED)
        final = isinstance(cause, (UsageError, RunDirectoryError, HealthError, KeyboardInterrupt))
        supervisor.end("failed", text, final)
        if isinstance(error, (RunDirectoryError, SystemExit)):
            raise
        traceback.print_exc()
        if isinstance(cause, CheckpointError):
            raise cause from None
        if isinstance(cause, HealthError):
            raise HealthError(f"{text}\n{how_to_continue()}") from None
        raise ReportedError(f"training stopped: {text}\n{how_to_continue()}") from None
    supervisor.end("complete", None, final=False)


def first_cause(error: BaseException) -> BaseException:
    """Return the first cause: Ray wraps what a method of an actor raised; in async training one actor waits for
    another."""
    while cause := getattr(error, "cause", None):
        error = cause
    return error


def describe_cause(error: BaseException) -> str:
    """Describe the cause of a training's end, for run.json and the screen: one line, unless the message is our own."""
    from ray.exceptions import RayActorError

    from openrlhf_ebpo.errors import without_traceback
    from openrlhf_ebpo.upstream.controller.failures import find_deaths

    cause = first_cause(error)
    if isinstance(cause, KeyboardInterrupt):
        return "ended by a signal to the driver's process"
    if isinstance(cause, ReportedError):
        return str(cause)
    if dead := find_deaths():
        return dead
    if isinstance(cause, RayActorError):
        return f"a process of the training did not start, or died: {without_traceback(cause)}"
    return f"{type(cause).__name__}: {without_traceback(cause)}" if str(cause) else type(cause).__name__
