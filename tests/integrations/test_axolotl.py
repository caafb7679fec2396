"""EBPOMixin on axolotl's synchronous GRPOTrainer with its configuration: a real training on a CPU, killed and resumed
bit for bit. Axolotl's YAML and command are not run."""

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("axolotl") is None:
    pytest.skip("runs in requirements/axolotl.txt: bash scripts/test_integrations.sh axolotl", allow_module_level=True)
from resuming import assert_resumes


def test_axolotls_trainer_trains_with_the_estimator_and_resumes(tmp_path):
    assert_resumes(Path(__file__).with_name("axolotl_training.py"), tmp_path)
