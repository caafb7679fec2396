# shellcheck shell=bash disable=SC2034
# What every run of the paper shares (arXiv 2602.05165, section 4 and the authors' released launch scripts).
# Sourced by run.sh after G is known; a method file may replace any of these.

prompts=512      # a rollout batch
mini_batch=128   # prompts an optimizer step: four steps a rollout batch
prompt_len=4096  # longer prompts are cut, at their beginning
response_len=8192
episodes=29      # passes over about 17,000 prompts, 34 steps each: close to the paper's 1,000 steps
every=50         # steps between evaluations and saved checkpoints
data=train       # $DATA_DIR/$data.parquet

# KL as a loss against the initial model, coefficient 0.001. k3 is what the authors' program defaults to.
kl=(--algo.kl.use_loss --algo.kl.estimator k3 --algo.kl.init_coef 0.001)
# PPO's clip range, and the dual clip that the authors' program applies unless told otherwise.
clip=(--actor.eps_clip_low_high 0.2 0.2 --actor.dual_clip 3.0)
# One mean over all response tokens of an optimizer step.
loss=(--actor.loss_agg_mode token-mean)
# Constant learning rate; weight decay and betas are those of the authors' program.
optimizer=(
    --actor.adam.lr 1e-6 --actor.adam.weight_decay 0.01 --actor.adam.betas 0.9 0.999
    --actor.lr_scheduler constant --actor.max_norm 1.0
)
# Everything is sampled from the policy as it is, also what is evaluated.
sampling=(--rollout.temperature 1.0 --rollout.top_p 1.0 --eval.temperature 1.0 --eval.n_samples_per_prompt 16)
