# shellcheck shell=bash disable=SC2034,SC2154
# Qwen3-8B: 8.19 B weights.
model=Qwen/Qwen3-8B
chat_template=1 # a chat model, and the authors' program wraps every prompt in the model's chat template
tensor_parallel=1
max_tokens=24576
memory=(--vllm.gpu_memory_utilization 0.7)
if ((GPU_GB < 100)); then # one sequence of full length at a time: its logits alone take 22 GB in the backward pass
    max_tokens=12288
    memory=(--vllm.gpu_memory_utilization 0.65)
fi
