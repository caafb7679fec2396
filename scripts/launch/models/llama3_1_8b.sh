# shellcheck shell=bash disable=SC2034,SC2154
# Llama-3.1-8B, the base model: 8.03 B weights.
model=meta-llama/Llama-3.1-8B
chat_template=0 # its tokenizer has none; the prompt is the data set's own instruction
bos='<|begin_of_text|>' # which every text that it was trained on begins with
tensor_parallel=1
max_tokens=24576
memory=(--vllm.gpu_memory_utilization 0.7)
if ((GPU_GB < 100)); then
    max_tokens=12288
    memory=(--vllm.gpu_memory_utilization 0.65)
fi
