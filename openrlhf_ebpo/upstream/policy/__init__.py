"""Code of policy and critic actors: checkpoints with their prior, losses, health, LoRA."""
