"""Upstream's engine arguments that our checks rely on."""

import inspect


def test_upstreams_engines_hold_bf16_whatever_the_policy_holds():
    """So --ds.param_dtype fp16 is refused (train/model_check.py)."""
    from openrlhf.trainer.ray import vllm_engine

    assert '"dtype": "bfloat16"' in inspect.getsource(vllm_engine.create_vllm_engines)
