"""What the figures and benchmarks/ are measured in: a small network with its tasks, a bandit, simulated success rates."""
