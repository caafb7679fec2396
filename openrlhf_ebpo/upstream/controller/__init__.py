"""Code of the trainer's process and the driver: experience, advantages, prompts, evaluation, staleness."""
