"""What every training command imports, with this project's seams; forked_driver.py has one process do it."""

import warnings

from openrlhf_ebpo import upstream

warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
upstream.install()
if upstream.is_cpu_stack():
    from openrlhf_ebpo import cpu

    cpu.prepare_driver()

import openrlhf.cli.train_ppo_ray  # noqa: E402, F401
