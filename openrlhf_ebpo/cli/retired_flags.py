"""Flags of this project's `train` that it had once: each is answered with one line that says what to use."""

from __future__ import annotations

ADAPTIVE = (
    "prompts are no longer chosen by their rewards; order or filter them by `openrlhf-ebpo data order` (docs/data.md)"
)
SIZES = "an engine does as much at a time as vLLM does offline; --vllm.gpu_memory_utilization takes less memory for it"
# flag, or flag and value
RETIRED = {
    "--data.order adaptive": ADAPTIVE,
    "--data.coverage": ADAPTIVE,
    "--data.order_any_model": "any order is trained on; `openrlhf-ebpo data difficulty` measures one for this model (docs/data.md)",
    "--hub.branch_per_step": "every step has a tag, step-000010, which `openrlhf-ebpo hub pull` and loaders take as revision",
    "--vllm.max_restarts": "an engine that dies ends the run; --train.max_restarts N resumes it from the newest checkpoint",
    "--vllm.max_num_seqs": SIZES,
    "--vllm.max_num_batched_tokens": SIZES,
}
