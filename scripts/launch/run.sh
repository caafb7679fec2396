#!/usr/bin/env bash
# Trains one row of the paper's table: a model, a method, a group size (G responses per prompt).
#
#   bash scripts/launch/run.sh MODEL METHOD G [--order ORDER] [flags]
#   bash scripts/launch/run.sh qwen3_8b ebpo 4 --order topic --dry_run   check everything, start nothing
#   bash scripts/launch/run.sh --print MODEL METHOD G …                  the composed flags, one per line
#   bash scripts/launch/run.sh --print-method METHOD G …                 only those that make the method
#
# ORDER  shuffle (default), topic, difficulty: of the prompts, for every method; difficulty is one pass, easy to hard
# flags  any flag of `openrlhf-ebpo train`; a later one wins
#
# Starts Ray on this machine, or joins the cluster that is up (slurm.sh and ray_job.sh use it for several nodes).
# Repeat the command to resume from the last checkpoint.
#
# Variables, with their defaults:
#   NODES=4 GPUS_PER_NODE=8   the authors' 32 GPUs; NODES=1 for one machine
#   GPU_GB                    memory of one GPU, from this machine's nvidia-smi; without one 141 (H200). 80: A100, H100
#   DATA_DIR=data/dapo        prepared data (below)
#   RUN_DIR=runs/MODEL-METHOD-gG[-ORDER]   checkpoints, model and run directory; on storage that all nodes share
#   MODEL_PATH                another folder or Hub name for the same architecture
#   CHAT_TEMPLATE             1 or 0: wrap prompts in the model's chat template; the model's file says why
# shellcheck source-path=SCRIPTDIR
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
orders='shuffle topic difficulty'

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 2
}

notice() { # to stderr: what --print says is read by programs
    printf 'notice: %s\n' "$@" >&2
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
    printf '\nmodels:\n%s\n\nmethods (scripts/launch/methods):\n%s\n\n' \
        "$(describe models)" "$(describe methods)"
    printf 'data, in DATA_DIR (docs/paper.md walks through it):\n'
    printf '  %s\n' 'train.parquet, validation.parquet     every run' \
        'topic_order.parquet                   --order topic' \
        'difficulty_order_MODEL.parquet        --order difficulty; …_MODEL_base.parquet for the base model'
}

check_choice() { # models|methods NAME
    [ -f "$here/$1/$2.sh" ] || fail "no such ${1%s}: $2. There are: $(names "$1" | paste -sd ' ')"
}

check_word() { # FLAG VALUE CHOICES
    [[ $2 =~ ^[a-z]+$ && " $3 " == *" $2 "* ]] || fail "$1 is '$2'; give one of: $3"
}

check_number() { # NAME VALUE LEAST
    if ! [[ $2 =~ ^[1-9][0-9]*$ ]] || (($2 < $3)); then # 08 is an octal number to bash, and none
        fail "$1 is '$2'; give a whole number, $3 or more"
    fi
}

take_order() { # the user's words: --order is ours, all others are flags of the training
    while (($#)); do
        case $1 in
            --order=*)
                set -- --order "${1#*=}" "${@:2}"
                continue
                ;;
            --order)
                [ "${2-}" ] || fail "--order needs a value (--help lists them)"
                order=$2 && shift
                ;;
            *) flags+=("$1") ;;
        esac
        shift
    done
}

given() { # FLAG DEFAULT: the user's last value of a flag of the training
    local value=$2 i
    for ((i = 0; i < ${#flags[@]}; i++)); do
        case ${flags[i]} in
            "$1") value=${flags[i + 1]-} ;;
            "$1="*) value=${flags[i]#*=} ;;
        esac
    done
    printf '%s' "$value"
}

how_to_make() { # a data file of ours
    local step="openrlhf-ebpo data" from=$DATA_DIR/train.parquet name
    name=$(basename "$1" .parquet)
    case $name in
        train | validation) echo "$step prepare --output $DATA_DIR" ;;
        topic_order)
            echo "$step topics --input $from --output $DATA_DIR/topics.parquet"
            echo "$step order --by topic --input $DATA_DIR/topics.parquet --output $1"
            ;;
        *)
            echo "$step difficulty --input $from --output $DATA_DIR/${name/_order/}.parquet --actor.model_name_or_path $weights ${reward[*]} ${template[*]@Q} --vllm.num_engines $GPUS_PER_NODE"
            echo "$step order --by difficulty --input $DATA_DIR/${name/_order/}.parquet --output $1"
            ;;
    esac
}

check_data() { # FLAG FILE, unless the user's flags name another
    [ -z "$(given "$1" '')" ] || return 0
    [ -f "$2" ] || fail "$2 is missing ($1). Make it with:"$'\n'"$(how_to_make "$2" | sed 's/^/  /;s/  *$//')"
}

count_rows() { # of a data file; prints nothing if it is missing or not ours, such as a .json list
    [[ $1 != *.json ]] || return 0
    python -c 'import sys; from openrlhf_ebpo.data.training_tables import count_rows; print(count_rows(sys.argv[1]))' "$1" 2>/dev/null || true
}

gpu_memory() { # GB of this machine's first GPU; nothing without one
    nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null |
        awk 'NR == 1 && /^[0-9]+$/ { printf "%d", $1 * 1.048576 / 1000 }' || true
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
    fail "MODEL, METHOD and G come first, then flags, for example: qwen3_8b ebpo 4 --order topic --dry_run (--help lists them)"
fi
model_name=$1 method_name=$2 G=$3 order=
flags=()
take_order "${@:4}"
run_name=$model_name-$method_name-g$G
[ "${order:-shuffle}" = shuffle ] || run_name+=-$order
: "${order:=shuffle}"
check_word --order "$order" "$orders"
check_choice models "$model_name"
check_choice methods "$method_name"
check_number G "$G" 2
: "${GPU_GB:=$(gpu_memory)}"
: "${NODES:=4}" "${GPUS_PER_NODE:=8}" "${GPU_GB:=141}" "${DATA_DIR:=data/dapo}"
: "${RUN_DIR:=runs/$run_name}"
check_number NODES "$NODES" 1
check_number GPUS_PER_NODE "$GPUS_PER_NODE" 1
check_number GPU_GB "$GPU_GB" 1
gpus=$((NODES * GPUS_PER_NODE))

# --- composed: the paper's settings, then the method's changes to them, then the machine

# shellcheck source=models/qwen3_8b.sh
. "$here/models/$model_name.sh"
# shellcheck source=paper.sh
. "$here/paper.sh"
# shellcheck source=methods/ebpo.sh
. "$here/methods/$method_name.sh"
((gpus % tensor_parallel == 0)) || fail "$gpus GPUs cannot be split into vLLM engines of $tensor_parallel"
((mini_batch * G % gpus == 0)) || fail "an optimizer step's $((mini_batch * G)) responses cannot be split over $gpus GPUs; choose NODES and GPUS_PER_NODE so that they can"

weights=${MODEL_PATH:-$model}
case $order in
    shuffle) data=train ordering=() ;;
    topic) data=topic_order ordering=(--data.order as_is --data.cluster_key cluster) ;;
    difficulty) # each model has its own order: what is easy for it before training
        data=difficulty_order_$model_name ordering=(--data.order as_is)
        case ${weights,,} in *-base | *-base/) data+=_base ;; esac
        ;;
esac
dataset=$(given --data.prompt_dataset "$DATA_DIR/$data.parquet")
passes=$(given --train.num_episodes "$passes")
check_number --train.num_episodes "$passes" 1

scheduler=(--actor.lr_scheduler constant)
if ((warm_up)); then # in verl a rollout batch is one step of the schedule; here an optimizer step is, and the flag a share
    rows=$(count_rows "$dataset")
    a_pass=$((${rows:-$questions} / mini_batch)) first=$((warm_up * prompts / mini_batch))
    all=$((a_pass * passes > 0 ? a_pass * passes : 1))
    share=$(awk "BEGIN { share = ($first - 0.5) / $all; print share < 1 ? share : 1 }") # rounded up there
    scheduler=(--actor.lr_scheduler constant_with_warmup --actor.lr_warmup_ratio "$share")
fi
algorithm=("${method[@]}" "${ordering[@]}" "${kl[@]}" "${clip[@]}" "${loss[@]}" --rollout.n_samples_per_prompt "$G")
optimizer=(
    --actor.adam.lr "$learning_rate" --actor.adam.weight_decay "$weight_decay" --actor.adam.betas 0.9 0.999
    "${scheduler[@]}" --actor.max_norm 1.0
)
batches=(
    --rollout.batch_size "$prompts" --train.batch_size $((mini_batch * G)) --train.num_episodes "$passes"
    --data.max_len $((prompt_len + response_len)) --rollout.max_new_tokens "$response_len"
    --rollout.temperature 1.0 --rollout.top_p 1.0
)
template=()
if [ "${CHAT_TEMPLATE:-$chat_template}" != 0 ]; then
    template=(--data.apply_chat_template)
elif [ "${bos-}" ]; then # OpenRLHF adds no special tokens to a prompt
    template=(--data.input_template "$bos{}")
fi
files=(
    --actor.model_name_or_path "$weights"
    --data.prompt_dataset "$DATA_DIR/$data.parquet" --data.input_key prompt --data.label_key label
    --eval.dataset "$DATA_DIR/validation.parquet" "${reward[@]}"
    "${template[@]}"
)
machine=(
    --train.colocate_all --vllm.enable_sleep --ds.enable_sleep
    --actor.num_nodes "$NODES" --actor.num_gpus_per_node "$GPUS_PER_NODE"
    --ref.num_nodes "$NODES" --ref.num_gpus_per_node "$GPUS_PER_NODE"
    --vllm.num_engines $((gpus / tensor_parallel)) --vllm.tensor_parallel_size "$tensor_parallel"
    --ds.zero_stage 3 --ds.attn_implementation flash_attention_2 --actor.gradient_checkpointing_enable
    --ds.packing_samples "${micro_batches[@]}" "${memory[@]}"
)
keeping=(
    --ckpt.path "$RUN_DIR/checkpoints" --ckpt.output_dir "$RUN_DIR/model" --logger.run_dir "$RUN_DIR/run"
    --logger.wandb.run_name "$(basename "$RUN_DIR")"
    --ckpt.save_steps "$save_every" --ckpt.save_minutes "$save_minutes" --ckpt.save_hf --ckpt.max_num 2 --ckpt.load_enable
    --eval.steps "$eval_every" "${evaluation[@]}"
)

if [ "$show" = method ]; then
    printf '%s\n' "${algorithm[@]}" && exit
fi
command=("${algorithm[@]}" "${batches[@]}" "${optimizer[@]}" "${files[@]}" "${machine[@]}" "${keeping[@]}" "${flags[@]}")
if [ "$show" = all ]; then
    printf '%s\n' "${command[@]}" && exit
fi
check_data --data.prompt_dataset "$DATA_DIR/$data.parquet"
check_data --eval.dataset "$DATA_DIR/validation.parquet"
python -c 'import openrlhf_ebpo' 2>/dev/null || fail "$(command -v python || echo python) has no openrlhf_ebpo: activate the environment it is installed in"
echo "$run_name: prompts by $order"
exec python -m openrlhf_ebpo.cli.train_ppo_ray "${command[@]}"
