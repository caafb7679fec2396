"""RewardSettings: what gives the rewards of a training, and its limits. With their flags."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

from openrlhf_ebpo.errors import UsageError

TIMEOUT = 60.0  # seconds for one call
SERVER_TIMEOUT = 180.0  # OpenRLHF's timeout of one request
MEMORY_MB = 8192
BUILT_IN = {"math": str(Path(__file__).parent / "math" / "math.py")}  # short names for the reward files of this package
TIMEOUT_FLAG, MEMORY_FLAG = "--reward.timeout", "--reward.memory"


@dataclass(frozen=True)
class RewardSettings:
    """Settings of rewards. Without sources and agent, responses are not scored.

    sources: a .py file with `reward_func`, or addresses of reward servers. agent: a .py file with `AgentExecutor`,
        which gives the rewards itself.
    overlong: tokens at the end of a response in which upstream punishes its length; None: it does not. max_new_tokens:
        longest response, None without that limit.
    timeout: seconds for one call. memory_mb: MiB that a process of a reward function may take beyond its imports; 0:
        no limit. workers: maximum number of such processes; None: `sources.default_calls`.
    """

    sources: tuple[str, ...] = ()
    agent: str | None = None
    timeout: float = TIMEOUT
    memory_mb: int = MEMORY_MB
    workers: int | None = None
    overlong: float | None = None
    max_new_tokens: int | None = None

    @classmethod
    def from_args(cls, args) -> RewardSettings:
        """Read upstream's nested arguments, which hold our flags under `args.reward`."""
        url, reward = args.reward.remote_url, args.reward
        sources, timeout = tuple(url.split(",") if isinstance(url, str) else url or ()), reward.timeout
        if timeout is None:
            timeout = SERVER_TIMEOUT if sources and sources[0].startswith(("http://", "https://")) else TIMEOUT
        overlong, longest = getattr(reward, "overlong_buffer_len", None), getattr(args.rollout, "max_new_tokens", None)
        return cls(sources, args.train.agent_func_path, timeout, reward.memory, reward.workers, overlong, longest)

    def check(self) -> None:
        """Raises UsageError if a limit is out of range."""
        if not 0 < self.timeout < math.inf:
            raise UsageError(f"{TIMEOUT_FLAG} is {self.timeout}; give a number of seconds above 0")
        if self.memory_mb < 0:
            raise UsageError(f"{MEMORY_FLAG} is {self.memory_mb}; give megabytes, or 0 for no limit")
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"--reward.workers is {self.workers}; give 1 or more, or leave it out")
        if self.overlong is not None and self.overlong > (self.max_new_tokens or 0):
            found = f"is {self.max_new_tokens}" if self.max_new_tokens else "is not given"
            raise UsageError(
                f"--reward.overlong_buffer_len {self.overlong:g} counts back from --rollout.max_new_tokens, "
                f"which {found}: give that many tokens or more (without it OpenRLHF counts from --data.max_len, prompt "
                "included, and punishes no cut response)"
            )


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("limits of rewards").add_argument
    add(
        TIMEOUT_FLAG,
        type=float,
        metavar="SECONDS",
        help="limit for one call of reward_func, of an agent's reset or step, or of a reward server with all its "
        f"tries; a longer one is a failed reward. Default {TIMEOUT:g}, for servers {SERVER_TIMEOUT:g}. The packaged "
        "rewards limit themselves",
    )
    add(
        MEMORY_FLAG,
        type=int,
        default=MEMORY_MB,
        metavar="MB",
        help="memory that each process of a reward_func may take beyond its imports; a call that needs more is a "
        "failed reward; 0: no limit",
    )
    add(
        "--reward.workers",
        type=int,
        metavar="N",
        help="most processes in which each engine calls reward_func, one call at a time in each. Each imports the file "
        "and has its own module state. Default: cores + 4, at most 32; 1 for files that load a model onto a GPU",
    )
