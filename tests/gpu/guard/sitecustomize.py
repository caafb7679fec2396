"""In every Python process that has this folder on PYTHONPATH: openrlhf_ebpo's CPU backend cannot be imported.

A training that ends with it installed has not used that backend in any process: not in the driver, nor in Ray's
workers, nor in vLLM's. Each process that stood guard adds its number to the file in OPENRLHF_EBPO_GUARD.
"""

import os
import sys

BACKEND = "openrlhf_ebpo.upstream.cpu"


class Guard:
    def find_spec(self, name, path=None, target=None):
        if name == BACKEND or name.startswith(f"{BACKEND}."):
            raise ImportError(f"{name} was asked for, and this process must not have it")


sys.meta_path.insert(0, Guard())
if os.environ.get("OPENRLHF_EBPO_GUARD"):
    with open(os.environ["OPENRLHF_EBPO_GUARD"], "a") as file:
        file.write(f"{os.getpid()}\n")
