"""Wait until a Ray cluster has enough GPUs, or fail: wait_for_gpus.py ADDRESS COUNT SECONDS."""

from __future__ import annotations

import contextlib
import socket
import sys
import time

import ray


def main(address: str, count: str, seconds: str) -> None:
    (host, _, port), found, deadline = address.rpartition(":"), 0, time.monotonic() + float(seconds)
    while found < int(count):
        if time.monotonic() > deadline:
            sys.exit(
                f"error: after {seconds} s the Ray cluster at {address} has {found:g} of {count} GPUs; the output of "
                "`ray start` above says why (can the nodes reach that address? HEAD_IP names another)"
            )
        with contextlib.suppress(OSError):  # the first node is still starting
            if not ray.is_initialized():
                socket.create_connection((host, int(port)), timeout=1).close()  # ray.init would try for ten minutes
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            found = ray.cluster_resources().get("GPU", 0)
        time.sleep(1)
    print(f"Ray cluster at {address}: {found:g} GPUs")


if __name__ == "__main__":
    main(*sys.argv[1:])
