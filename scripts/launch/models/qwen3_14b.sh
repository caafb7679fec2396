# shellcheck shell=bash disable=SC2034,SC2154
# Qwen3-14B: 14.77 B weights.
model=Qwen/Qwen3-14B
chat_template=1 # as for Qwen3-8B
tensor_parallel=1
memory=(--vllm.gpu_memory_utilization 0.7 --train.max_tokens_per_gpu 24576 --rollout.max_tokens_per_gpu 24576)
if ((GPU_GB < 100)); then
    tensor_parallel=2 # 30 GB of weights would leave one 80 GB GPU little room for the cache
    memory=(--vllm.gpu_memory_utilization 0.65 --train.max_tokens_per_gpu 12288 --rollout.max_tokens_per_gpu 12288)
    if ((gpus < 16)); then
        memory+=(--ds.adam_offload) # 12 bytes per weight, 22 GB per GPU on eight
    fi
fi
