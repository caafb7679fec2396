"""EBPO, an empirical-Bayes advantage estimator, for an installed and unmodified OpenRLHF.

folder                holds                                                        runs in
estimator/            rewards in, advantages and the next state out; numpy alone   controller; commands
upstream/             what is changed in OpenRLHF; code of several processes       driver and its Ray actors
  controller/         trainer, experience maker, prompts, evaluation, staleness    the trainer's actor; the driver
  policy/             checkpoint with its prior, losses, health, LoRA              policy and critic actors; `sft`
  rollout/            guarded rewards, log-probabilities, deaths                   rollout actors, EngineCore
  cpu/                the stack without a GPU                                      all of these, without CUDA
rewards/math/         what an answer is                                            rollout actors, reward processes
rewards/processes/    what runs a reward, and bounds it                            rollout actors, reward processes
engines/              Ray and rollout engines, started                             driver; `eval`, `data difficulty`
run/                  the run directory: written, read, locked, resumed            supervisor, driver, actors; readers
train/                the command `train`: flags, checks, end; supervisor/         supervisor, driver
data/ hub/ eval/ space/  the commands of these names, the last two at the top     the command; a child that pushes
integrations/         other trainers                                               theirs
quickstart/           the first run                                                the command
cli/                  one thin module per command                                  the command
*.py                  errors, files, redaction, the Hub's client, model folders    whoever calls
"""

__version__ = "0.1.0"
