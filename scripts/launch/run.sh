#!/usr/bin/env bash
# Trains one row of the paper's table: a model, a method, a group size.
#
#   bash scripts/launch/run.sh MODEL METHOD G [flags]     any flag of `openrlhf-ebpo train`; a later one wins
#   bash scripts/launch/run.sh qwen3_8b ebpo_topic 4 --dry_run          check everything, start nothing
#   bash scripts/launch/run.sh --print MODEL METHOD G [flags]           the composed flags, one per line
#   bash scripts/launch/run.sh --print-method METHOD G                  only those that make the method
#
# Starts Ray on this machine, or joins the cluster that is up (slurm.sh and ray_job.sh use it for several nodes).
# Repeat the command to go on from the last checkpoint.
#
# Variables, with their defaults:
#   NODES=4 GPUS_PER_NODE=8   the authors' 32 GPUs; NODES=1 for one machine
#   GPU_GB=141                memory of one GPU (H200); 80 chooses settings for A100 and H100
#   DATA_DIR=data/dapo        prepared data (below)
#   RUN_DIR=runs/MODEL-METHOD-gG   checkpoints, model and run directory; on storage that all nodes share
#   MODEL_PATH                another folder or Hub name for the same architecture
#   CHAT_TEMPLATE             1 or 0: wrap prompts in the model's chat template; the model's file says why
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 2
}

names() {
    local file
    for file in "$here/$1"/*.sh; do basename "$file" .sh; done
}

describe() {
    local name
    for name in $(names "$1"); do
        printf '  %-19s %s\n' "$name" "$(sed -n '2s/^# //p' "$here/$1/$name.sh")"
    done
}

teach() {
    sed -n '2,/^# shellcheck/{/^# shellcheck/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    printf '\nmodels:\n%s\n\nmethods:\n%s\n\n' "$(describe models)" "$(describe methods)"
    printf 'data, in DATA_DIR (docs/reproduce.md walks through it):\n'
    printf '  %s\n' 'train.parquet, validation.parquet     every run' 'topic_order.parquet                   ebpo_topic' \
        'difficulty_order_MODEL.parquet        ebpo_difficulty'
}

check_choice() { # models|methods NAME
    [ -f "$here/$1/$2.sh" ] || fail "no such ${1%s}: $2. There are: $(names "$1" | paste -sd ' ')"
}

check_number() { # NAME VALUE LEAST
    if ! [[ $2 =~ ^[0-9]+$ ]] || (($2 < $3)); then
        fail "$1 is '$2'; give a whole number, $3 or more"
    fi
}

how_to_make() { # a data file of ours
    local step="openrlhf-ebpo data" from=$DATA_DIR/train.parquet measured=$DATA_DIR/difficulty_$model_name.parquet
    case $(basename "$1" .parquet) in
        train | validation) echo "$step prepare --output $DATA_DIR" ;;
        topic_order)
            echo "$step topics --input $from --output $DATA_DIR/topics.parquet"
            echo "$step order --by topic --input $DATA_DIR/topics.parquet --output $1"
            ;;
        *)
            echo "$step difficulty --input $from --output $measured --model ${MODEL_PATH:-$model} --reward math ${template[*]@Q} --num_engines $GPUS_PER_NODE"
            echo "$step order --by difficulty --input $measured --output $1"
            ;;
    esac
}

check_data() { # FLAG FILE, unless the user's own flags name another
    local flag
    for flag in "${flags[@]}"; do [[ $flag != "$1" && $flag != "$1="* ]] || return 0; done
    [ -f "$2" ] || fail "$2 is missing ($1). Make it with:"$'\n'"$(how_to_make "$2" | sed 's/^/  /;s/  *$//')"
}

# --- what to run

((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || fail "bash $BASH_VERSION is too old: 4.4 or later is needed"
show=
case ${1-} in
    '' | -h | --help) teach && exit ;;
    --print) show=all && shift ;;
    --print-method) show=method && shift && set -- qwen3_8b "$@" ;;
esac
if (($# < 3)) || [[ "$1$2$3" == *--* ]]; then
    fail "MODEL, METHOD and G come first, then flags, for example: qwen3_8b ebpo_topic 4 --dry_run (--help lists them)"
fi
model_name=$1 method_name=$2 G=$3
flags=("${@:4}")
check_choice models "$model_name"
check_choice methods "$method_name"
check_number G "$G" 2
: "${NODES:=4}" "${GPUS_PER_NODE:=8}" "${GPU_GB:=141}" "${DATA_DIR:=data/dapo}"
: "${RUN_DIR:=runs/$model_name-$method_name-g$G}"
check_number NODES "$NODES" 1
check_number GPUS_PER_NODE "$GPUS_PER_NODE" 1
check_number GPU_GB "$GPU_GB" 1
gpus=$((NODES * GPUS_PER_NODE))

# --- composed: the paper's set-up, then the method's changes to it, then the machine

# shellcheck source=models/qwen3_8b.sh
. "$here/models/$model_name.sh"
# shellcheck source=paper.sh
. "$here/paper.sh"
# shellcheck source=methods/ebpo_topic.sh
. "$here/methods/$method_name.sh"
((gpus % tensor_parallel == 0)) || fail "$gpus GPUs cannot be split into vLLM engines of $tensor_parallel"
((mini_batch * G % gpus == 0)) || fail "an optimizer step's $((mini_batch * G)) responses cannot be split over $gpus GPUs; choose NODES and GPUS_PER_NODE so that they can"

algorithm=("${method[@]}" "${kl[@]}" "${clip[@]}" "${loss[@]}" --rollout.n_samples_per_prompt "$G")
batches=(
    --rollout.batch_size "$prompts" --train.batch_size $((mini_batch * G)) --train.num_episodes "$episodes"
    --data.max_len $((prompt_len + response_len)) --rollout.max_new_tokens "$response_len"
)
template=()
if [ "${CHAT_TEMPLATE:-$chat_template}" != 0 ]; then
    template=(--apply_chat_template)
elif [ "${bos-}" ]; then # OpenRLHF adds no special tokens to a prompt
    template=(--input_template "$bos{}")
fi
files=(
    --actor.model_name_or_path "${MODEL_PATH:-$model}"
    --data.prompt_dataset "$DATA_DIR/$data.parquet" --data.input_key prompt --data.label_key label
    --eval.dataset "$DATA_DIR/validation.parquet" --reward.remote_url math
    "${template[@]/--/--data.}"
)
machine=(
    --train.colocate_all --vllm.enable_sleep --ds.enable_sleep
    --actor.num_nodes "$NODES" --actor.num_gpus_per_node "$GPUS_PER_NODE"
    --ref.num_nodes "$NODES" --ref.num_gpus_per_node "$GPUS_PER_NODE"
    --vllm.num_engines $((gpus / tensor_parallel)) --vllm.tensor_parallel_size "$tensor_parallel"
    --ds.zero_stage 3 --ds.attn_implementation flash_attention_2 --actor.gradient_checkpointing_enable
    --ds.packing_samples --train.dynamic_batch_enable "${memory[@]}"
)
keeping=(
    --ckpt.path "$RUN_DIR/checkpoints" --ckpt.output_dir "$RUN_DIR/model" --logger.run_dir "$RUN_DIR/run"
    --logger.wandb.run_name "$(basename "$RUN_DIR")"
    --ckpt.save_steps "$every" --ckpt.save_hf --ckpt.max_num 2 --ckpt.load_enable
    --eval.steps "$every" --eval.metrics maj@16 --ckpt.best_metric_key maj@16 # the best checkpoint is kept too
)

if [ "$show" = method ]; then
    printf '%s\n' "${algorithm[@]}" && exit
fi
command=("${algorithm[@]}" "${batches[@]}" "${optimizer[@]}" "${sampling[@]}" "${files[@]}" "${machine[@]}" "${keeping[@]}" "${flags[@]}")
if [ "$show" = all ]; then
    printf '%s\n' "${command[@]}" && exit
fi
check_data --data.prompt_dataset "$DATA_DIR/$data.parquet"
check_data --eval.dataset "$DATA_DIR/validation.parquet"
python -c 'import openrlhf_ebpo' 2>/dev/null || fail "$(command -v python || echo python) has no openrlhf_ebpo: activate the environment it is installed in"
exec python -m openrlhf_ebpo.cli.train_ppo_ray "${command[@]}"
