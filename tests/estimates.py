"""One step of EBPO on plain tensors, for tests."""

from dataclasses import fields, replace

import numpy as np
import torch

from openrlhf_ebpo.estimator.advantage import Estimate, estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.estimator.prior import Prior


def ebpo_step(rewards: torch.Tensor, valid: torch.Tensor, prior: Prior, config: EstimatorConfig) -> Estimate:
    """With the result's arrays as tensors."""
    result = estimate(EBPO(config), Batch.of(rewards.numpy(), valid.numpy()), prior)
    arrays = {f.name: getattr(result, f.name) for f in fields(result)}
    return replace(result, **{name: torch.tensor(a) for name, a in arrays.items() if isinstance(a, np.ndarray)})
