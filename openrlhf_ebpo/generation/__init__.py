"""Ray, and responses from vLLM engines, with or without training."""
