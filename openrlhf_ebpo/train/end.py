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
from openrlhf_ebpo.train.supervisor.driver import Supervisor


@contextlib.contextmanager
def recorded_end(supervisor: Supervisor) -> Iterator[None]:
    """Record in run.json how the run ended."""
    status, error, final = "complete", None, False
    try:
        yield
    except BaseException as caught:
        status = "interrupted" if isinstance(caught, KeyboardInterrupt) else "failed"
        error = describe_cause(caught)
        if isinstance(cause := first_cause(caught), TrainingPaused):
            status, error = "paused", str(cause)
        final = isinstance(first_cause(caught), (UsageError, RunDirectoryError, HealthError, KeyboardInterrupt))
        raise
    finally:
        supervisor.end(status, error, final)


@contextlib.contextmanager
def explained_end(supervisor: Supervisor, how_to_continue: Callable[[], str]) -> Iterator[None]:
    """Turn what ends a training into a message that says how to continue; a pause exits with PAUSED.

    Raises:
        ReportedError: the training has failed. KeyboardInterrupt.
    """
    from openrlhf_ebpo.engines.cluster import ClusterError

    try:
        yield
    except RunDirectoryError:
        raise
    except ClusterError as error:  # at a restart the machine may still be busy with the end of the training before
        supervisor.end("failed", f"ClusterError: {error}", False)
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(how_to_continue()) from None
    except Exception as error:
        if isinstance(cause := first_cause(error), TrainingPaused):
            print(f"paused: {cause}\n{how_to_continue()}", file=sys.stderr)
            sys.exit(PAUSED)
        traceback.print_exc()
        if isinstance(cause, CheckpointError):
            raise cause from None
        if isinstance(cause, HealthError):
            raise HealthError(f"{cause}\n{how_to_continue()}") from None
        cause = supervisor.cause or describe_cause(error)
        raise ReportedError(f"training stopped: {cause}\n{how_to_continue()}") from None


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
