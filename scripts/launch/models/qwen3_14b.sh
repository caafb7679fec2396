# shellcheck shell=bash disable=SC2034,SC2154
# Qwen3-14B: 14.77 B weights.
model=Qwen/Qwen3-14B
chat_template=1 # as for Qwen3-8B
tensor_parallel=1
max_tokens=24576
memory=(--vllm.gpu_memory_utilization 0.7)
if ((GPU_GB < 100)); then
    tensor_parallel=2 # 30 GB of weights would leave one 80 GB GPU little room for the cache
    max_tokens=12288
    memory=(--vllm.gpu_memory_utilization 0.65)
    # Adam takes 12 bytes a weight, 22 GB a GPU on eight. 75 GB of 80 there in all.
    ((gpus >= 8)) || memory+=(--ds.adam_offload)
fi
