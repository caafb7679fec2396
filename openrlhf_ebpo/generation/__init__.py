"""Ray, and responses from vLLM engines, with or without training. Which process a file runs in:

of a command      cluster.py (Ray), engines.py (rollout engines without a training), rendering.py (prompts),
                  placement.py (processes and GPUs of a training); they become the room engines/
training's driver   arguments.py, watch.py
rollout actors    deaths.py, log_probs.py, offline_defaults.py
every process     tokenizers.py, engine_limits.py
"""
