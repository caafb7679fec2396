# shellcheck shell=bash disable=SC2034,SC2154
# Settings of every run of the released track: the scripts in recipe/ebpo of Tonyzhou98/verl, as far as they take effect.
# docs/paper.md has the table. The basis are those for four nodes (EBPO, REINFORCE++, RLOO, and every --order difficulty);
# one_node changes to those for one node.
# shellcheck source-path=SCRIPTDIR source=paper.sh
. "$here/paper.sh"

reward=(--reward.remote_url dapo) # verl's math_dapo: 1 or -1
# The mean over the tokens of a micro-batch, then over micro-batches; two responses a GPU.
loss+=(--actor.loss_mean micro_batch)
micro_batches=(--train.micro_batch_size 2 --rollout.micro_batch_size 2)
# They sample no answers to test with (do_sample is not set): eight equal ones, here one. The last checkpoint is merged.
evaluation=(--eval.temperature 0.0 --eval.n_samples_per_prompt 1 --ckpt.best_metric_key none)
eval_every=5
topic_order=topic_order_release

if [ "$order" = difficulty ]; then
    model=$base
else
    passes=20
    save_every=10
fi

# The scripts *_random_*, on one node: a shuffled order. They take 8 responses a micro-batch, whose logits would not fit
# a GPU here; --train.micro_batch_size 8 asks for them.
one_node() {
    [ "$order" = difficulty ] || passes=6 save_every=50
}
