"""Import what training commands and their Ray workers import; forked_driver.py has one process do it.

Not Ray itself: it reads a job's number from the environment while it is imported.
"""

import gc
import importlib
import sys
import warnings

from openrlhf_ebpo.upstream.install import install
from openrlhf_ebpo.upstream.stack import is_cpu_stack

warnings.filterwarnings("ignore", "The pynvml package is deprecated", FutureWarning)
sys.modules["ray"] = None
install()
if is_cpu_stack():
    from openrlhf_ebpo.upstream import cpu

    cpu.prepare_driver()

for name in (
    "datasets",
    "deepspeed",
    "peft",
    "torch.distributed.device_mesh",
    "torch.utils.tensorboard",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
):
    importlib.import_module(name)

del sys.modules["ray"], sys.modules["vllm.v1.executor.ray_utils"]  # which has found no Ray

gc.collect()
gc.freeze()  # or every process walks through all of this again, and copies it
