# shellcheck shell=bash disable=SC2034,SC2154
# Settings of every run: the paper's text (arXiv 2602.05165, section 4 and its appendix).
# Sourced by run.sh after model, order and G are known; a method file may replace any of these.

questions=16900  # of DAPO-Math-17K, less those held out; an existing data file is counted
prompts=512      # a rollout batch
mini_batch=128   # prompts an optimizer step: four steps a rollout batch
prompt_len=4096  # longer prompts are cut, at their beginning
response_len=8192
passes=30        # over 16,900 prompts, 33 steps each: 990, and the text says up to 1,000
save_every=50
save_minutes=60
eval_every=50

# KL as a loss against the initial model, coefficient 0.001. k3 is what the authors' program defaults to.
kl=(--algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef 0.001)
no_kl=(--algo.kl.init_coef 0)
# PPO's clip range, and the dual clip that the authors' program applies unless told otherwise.
clip=(--actor.eps_clip_low_high 0.2 0.2 --actor.dual_clip 3.0)
# One mean over all response tokens of an optimizer step.
loss=(--actor.loss_agg_mode token-mean)
# Constant learning rate; betas are those of the authors' program.
learning_rate=1e-6
weight_decay=0.01
warm_up=0 # rollout batches
reward=(--reward.remote_url math)
# Micro-batches of as many tokens as fit: with one mean over the optimizer step they change nothing.
micro_batches=(--train.dynamic_batch_enable --train.max_tokens_per_gpu "$max_tokens" --rollout.max_tokens_per_gpu "$max_tokens")
# The checkpoint with the best pass@1 on held-out questions; the paper chooses by maj@16 (docs/paper.md, step 5).
evaluation=(--eval.temperature 1.0 --eval.n_samples_per_prompt 16)

if [ "$order" = difficulty ]; then # one pass, from easy to hard
    passes=1
    save_every=10
    eval_every=10
fi
