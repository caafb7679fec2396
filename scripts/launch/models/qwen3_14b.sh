# shellcheck shell=bash disable=SC2034,SC2154
# Qwen3-14B: 14.77 B weights.
model=Qwen/Qwen3-14B
base=Qwen/Qwen3-14B-Base # what the released scripts start from, easy to hard
chat_template=1 # as for Qwen3-8B
tensor_parallel=1
max_tokens=24576
memory=(--vllm.gpu_memory_utilization 0.7)
if ((GPU_GB < 100)); then
    tensor_parallel=2 # 30 GB of weights would leave one 80 GB GPU little room for the cache
    max_tokens=12288
    memory=(--vllm.gpu_memory_utilization 0.65)
    if ((gpus < 16)); then
        memory+=(--ds.adam_offload) # 12 bytes per weight, 22 GB per GPU on eight
    fi
fi
