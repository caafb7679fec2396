"""The weight sync of upstream's vLLM worker without a line for every tensor, about 400 an engine and step."""

from __future__ import annotations

import contextlib
import io

from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap


class QuietWorker(WorkerWrap):
    """vLLM worker extension; vLLM makes it a further base of its worker, in a process that our rows do not reach."""

    def update_weight(self, *args, **kwargs):
        with contextlib.redirect_stdout(io.StringIO()):
            return super().update_weight(*args, **kwargs)

    def update_weight_cuda_ipc(self, *args, **kwargs):
        with contextlib.redirect_stdout(io.StringIO()):
            return super().update_weight_cuda_ipc(*args, **kwargs)
