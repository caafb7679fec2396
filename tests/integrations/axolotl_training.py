"""trl_training.py with the GRPOTrainer and the configuration of axolotl, as its `trainer_cls` gets them."""

import trl
from axolotl.core.trainers.grpo.args import AxolotlGRPOConfig
from axolotl.core.trainers.grpo.trainer import AxolotlGRPOTrainer

trl.GRPOTrainer = AxolotlGRPOTrainer  # the base that EBPOTrainer looks up
import trl_training  # noqa: E402

if __name__ == "__main__":
    trl_training.GRPOConfig = AxolotlGRPOConfig
    trl_training.main()
