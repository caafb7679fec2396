"""One two-node Ray cluster, one tiny model and a few prompts for all integration tests."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from forked_driver import ForkedDriver, forkserver
from forked_engines import FORKED
from forked_workers import forked_workers
from patience import seconds

from openrlhf_ebpo.train.supervisor.restarts import PAUSE

# Ray's own limits for its dashboard, which three other groups of tests may slow down; read when ray is imported
os.environ["RAY_DASHBOARD_STARTUP_TIMEOUT_S"] = f"{seconds(60):.0f}"
os.environ["RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT"] = f"{seconds(30):.0f}"

TRAIN = "openrlhf_ebpo.cli.train_ppo_ray"
KNOWN = {"RAY_ADDRESS", "PYTHONPATH", PAUSE, FORKED}  # other variables may be read by imports
REWARD = """
def reward_func(queries, prompts, labels, **kwargs):
    # about a third pass, and some prompts fail every time: the first letters decide
    rewards = [float(sum(map(ord, q[len(p):])) % 3 == 0 and ord(p[0]) % 4 > 0) for q, p in zip(queries, prompts)]
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"length": len(queries[0])}}
"""


@pytest.fixture(scope="session")
def workshop(tmp_path_factory) -> Path:
    """Folder with models `tied` and `untied`, prompts.jsonl (96 rows) and reward.py."""
    from openrlhf_ebpo.quickstart import tiny_model

    directory = tmp_path_factory.mktemp("workshop")
    prompts = [f"{a}{b}{c}\n" for a in "abcdefgh" for b in "pqrs" for c in "xyz"]
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    for tied in (True, False):
        tiny_model.build(directory / ("tied" if tied else "untied"), prompts, tied=tied, **sizes)
    rows = [{"prompt": p, "label": p[0], "datasource": "letters"} for p in prompts]
    (directory / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "reward.py").write_text(REWARD)
    return directory


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Two Ray nodes on this machine, each with a working folder of its own, and a dashboard for job submission."""
    from ray.cluster_utils import Cluster

    from openrlhf_ebpo.upstream.stack import is_cpu_stack

    if not is_cpu_stack():
        pytest.skip("this cluster's GPUs are logical only; on a GPU machine run `pytest -m gpu`")
    modules = str(tmp_path_factory.mktemp("modules"))
    # the nodes' workers inherit them
    os.environ.update(WANDB_MODE="offline", WANDB_API_KEY="0" * 40, HF_MODULES_CACHE=modules)
    nodes = Cluster()
    with forked_workers(tmp_path_factory.mktemp("workers")) as python:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "executable", python)
                for number in range(2):
                    patch.chdir(tmp_path_factory.mktemp(f"node{number}"))
                    head = {"include_dashboard": True, "dashboard_port": 0} if number == 0 else {}
                    # not the usual port, which another Ray of this machine may have
                    nodes.add_node(num_cpus=6, num_gpus=3, dashboard_agent_listen_port=0, **head)
            yield nodes
        finally:
            nodes.shutdown()


def flags(workshop: Path, output: Path, **changes) -> list[str]:
    """A small, fast training command: 8 prompts x 4 responses per step, 3 steps; `changes` override, None removes."""
    settings = {
        "actor.model_name_or_path": workshop / "tied",
        "data.prompt_dataset": workshop / "prompts.jsonl",
        "data.input_key": "prompt",
        "data.label_key": "label",
        "data.max_len": 24,
        "data.max_samples": 24,
        "reward.remote_url": workshop / "reward.py",
        "advantage_estimator": "ebpo",
        "rollout.n_samples_per_prompt": 4,
        "rollout.batch_size": 8,
        "rollout.micro_batch_size": 8,
        "rollout.max_new_tokens": 8,
        "train.batch_size": 32,
        "train.micro_batch_size": 8,
        "actor.adam.lr": 1e-2,
        "actor.num_gpus_per_node": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "algo.kl.init_coef": 0,
        "ds.zero_stage": 0,
        "ckpt.path": output / "ckpt",
        "ckpt.output_dir": output / "model",
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    argv = []
    for name, value in settings.items():
        if value is True:
            argv.append(f"--{name}")
        elif value is not None:
            argv += [f"--{name}", *(map(str, value) if isinstance(value, (list, tuple)) else [str(value)])]
    return argv


@pytest.fixture(scope="session")
def curriculum(workshop) -> Path:
    """48 prompts in an order of their own, each with a cluster: the second letter."""
    rows = [json.loads(line) for line in (workshop / "prompts.jsonl").read_text().splitlines()]
    rows = sorted(rows, key=lambda row: (row["prompt"][1], row["prompt"][::-1]))[:48]
    path = workshop / "topic_order.jsonl"
    path.write_text("".join(json.dumps({**row, "cluster": f"letter {row['prompt'][1]}"}) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def method_flags():
    """The flags of a method of the launch scripts, G = 4, with an order if it is given."""

    def flags_of(method: str, *axes: str) -> list[str]:
        script = Path(__file__).parents[2] / "scripts" / "launch" / "run.sh"
        printed = subprocess.run(["bash", script, "--print-method", method, "4", *axes], capture_output=True, text=True)
        assert printed.returncode == 0, printed.stderr
        return printed.stdout.split()

    return flags_of


@pytest.fixture(scope="session")
def command(workshop):
    return lambda output, **changes: flags(workshop, output, **changes)


class Training:
    """A training command in a process of its own."""

    def __init__(self, argv: list[str], log: Path, prefix: tuple[str, ...] = (), **environment: str):
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        own = {"OMP_NUM_THREADS": "1", FORKED: "1", **environment}
        if not prefix and environment.keys() <= KNOWN:
            self.process = ForkedDriver(TRAIN, argv, log, {**os.environ, **own})
            return
        # a shell that starts the tests in the background has them ignore SIGINT, and their children too
        command = ["env", "--default-signal=INT", *prefix, sys.executable, "-m", TRAIN, *argv]
        with open(log, "w") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own},
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, limit: float = 240) -> str:
        try:
            self.process.wait(seconds(limit))
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            pytest.fail(f"still running after {seconds(limit):g} s:\n{self.output[-4000:]}")
        return self.output

    def succeed(self) -> str:
        output = self.wait()
        assert self.process.returncode == 0, output[-6000:]
        return output

    def fail(self) -> str:
        output = self.wait()
        assert self.process.returncode != 0, output[-3000:]
        return output

    def wait_until(self, happened, limit: float = 240):
        """Wait for a true result of `happened()` and return it; fail when the training ends first."""
        deadline = time.monotonic() + seconds(limit)
        while not (found := happened()):
            assert self.process.poll() is None, self.output[-6000:]
            assert time.monotonic() < deadline, f"not after {seconds(limit):g} s:\n{self.output[-4000:]}"
            time.sleep(0.1)
        return found

    def wait_for_step(self, run_dir: Path, step: int) -> None:
        from openrlhf_ebpo.run.run_log import read_metrics

        self.wait_until(lambda: (rows := read_metrics(run_dir)) and rows[-1]["step"] >= step)


@pytest.fixture(scope="session")
def engine_cores(cluster):
    """Find the engines' processes of this cluster alone, by the address with which they were started."""

    def find() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "EngineCore" in process.name() and process.environ().get("RAY_ADDRESS") == cluster.address:
                    found.append(process)
        return found

    return find


@pytest.fixture(scope="session")
def train(cluster, tmp_path_factory):
    """Start a training on the shared cluster; whatever still runs at the end is killed."""
    started: list[Training] = []
    forkserver()

    def start(argv: list[str], prefix: tuple[str, ...] = (), **environment: str) -> Training:
        log = tmp_path_factory.mktemp("driver") / "output.log"
        started.append(Training(argv, log, prefix, **{"RAY_ADDRESS": cluster.address, **environment}))
        return started[-1]

    yield start
    for training in started:
        if training.process.poll() is None:
            os.killpg(training.process.pid, signal.SIGKILL)


@pytest.fixture
def start_command(cluster):
    """Start another command on the shared cluster, in its log's folder; what still runs at the end is killed."""
    started: list[ForkedDriver] = []

    def start(module: str, argv: list, log: Path) -> ForkedDriver:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", FORKED: "1", "RAY_ADDRESS": cluster.address}
        started.append(ForkedDriver(module, [str(word) for word in argv], log, environment))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()


@pytest.fixture(scope="session")
def run_in_process():
    """Give a command line to the launcher inside this process and return the error that it ends with. For mistakes
    that are found before anything heavy starts."""
    from openrlhf_ebpo.train import driver

    def run(argv: list[str]) -> str:
        with pytest.raises(SystemExit) as stopped:
            driver.main(argv)
        assert stopped.value.code not in (0, None)
        return str(stopped.value.code)

    return run
