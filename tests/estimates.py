"""One step of EBPO on plain tensors, for tests."""

from __future__ import annotations

import torch

from openrlhf_ebpo.estimator.advantage import Estimate, estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.prior import Prior


def ebpo_step(rewards: torch.Tensor, valid: torch.Tensor, prior: Prior, config: EstimatorConfig) -> Estimate:
    return estimate(EBPO(config), Batch.of(rewards, valid), prior)
