"""EBPO, an empirical-Bayes advantage estimator, for an installed and unmodified OpenRLHF.

folder                holds                                                          runs in
estimator/            rewards in, advantages and the next state out; numpy alone     controller; commands
upstream/             what is changed in OpenRLHF; code of several processes         every process of a training
  controller/         trainer, experience maker, prompts, evaluation, staleness      the trainer's actor; the driver
  policy/             checkpoint with its prior, losses, health, LoRA                policy and critic actors
  rollout/            guarded rewards, log-probabilities, deaths                     rollout actors, EngineCore
  cpu/                the stack without a GPU                                        every process without CUDA
rewards/math/         what an answer is                                              rollout actors, reward processes
rewards/processes/    what runs a reward, and bounds it                              rollout actors, reward processes
engines/              Ray and rollout engines started from a command                 the command
run/                  the run directory: written, read, locked, resumed              controller, command, readers
train/                flags, checks and end of the command `train`; supervisor/      the command, the driver
data/ hub/ eval/ space/  the commands of these names                                 the command
integrations/         other trainers                                                 theirs
quickstart/           the first run                                                  the command
cli/                  one thin module per command                                    the command
"""

__version__ = "0.1.0"
