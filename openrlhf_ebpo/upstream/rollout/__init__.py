"""Code of rollout actors and their engines: guarded rewards, log-probabilities, deaths."""
