"""The command `train`: flags, settings, checks before the start, the supervisor, the end."""
