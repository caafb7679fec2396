"""A long step is not a stall: while a policy's actor is in one call, the heartbeat has its micro-batches."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly  # daily: unit/test_heartbeat.py

DRIVER = """
import sys, threading, time
import ray, torch
from openrlhf_ebpo.run.heartbeat import GENERATING, Heartbeat
from openrlhf_ebpo.upstream import phases

@ray.remote(num_cpus=0)
class Policy:
    def train(self, micro_batches, seconds):
        from openrlhf_ebpo.upstream import phases

        phases.POLL_SECONDS = 0.05
        model = torch.nn.Linear(2, 2)
        model.register_forward_hook(phases.MicroBatches())
        for _ in range(micro_batches):
            model(torch.ones(1, 2))
            time.sleep(seconds)

ray.init(address=sys.argv[1], log_to_driver=False)
print("before:", phases.micro_batches() or "nothing")
phases.POLL_SECONDS = 0.1
heart = Heartbeat(sys.argv[2])
engines = ["an engine, which is not asked in these phases"]
threading.Thread(target=phases.watch_rollouts, args=(heart, engines), daemon=True).start()
heart.report(phases.TRAINING)
seen, call = [], Policy.remote().train.remote(20, 0.2)
while not ray.wait([call], timeout=0.1)[0]:
    if heart._beat.detail not in seen:
        seen.append(heart._beat.detail)
ray.get(call)
print("seen:", len(seen), seen[-1])
"""


def test_micro_batches_feed_the_heartbeat_while_the_actor_is_in_its_call(cluster, tmp_path):
    command = [sys.executable, "-c", DRIVER, cluster.address, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    before, seen = done.stdout.splitlines()
    assert before == "before: nothing"
    _, count, *words = seen.split()
    assert int(count) >= 3 and words[1:] == ["micro-batches", "since", "the", "start"], seen
