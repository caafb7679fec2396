"""Two Ray nodes on one machine, each with the same one GPU: trainer and engine apart where there is no second GPU.

OpenRLHF asks Ray for one GPU for the trainer and one for each engine, and NCCL refuses two ranks of one machine on one GPU.
Two nodes have a GPU each, and NCCL takes the nodes for two machines (NCCL_HOSTID): weights then go over a socket.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

CORES = 8  # of a node; more than there may be, since Ray only counts them


@contextmanager
def two_nodes() -> Iterator[str]:
    """The cluster's address."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("RAY_worker_niceness", "0")
    nodes = Cluster()
    try:
        for number in range(2):
            variables = {"NCCL_HOSTID": f"node-{number}"}
            logging.getLogger("ray").setLevel(logging.WARNING)
            nodes.add_node(num_cpus=CORES, num_gpus=1, dashboard_agent_listen_port=0, env_vars=variables)
        yield nodes.address
    finally:
        nodes.shutdown()
