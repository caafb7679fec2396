"""The estimator itself: prior, shrinkage, advantages. Needs numpy, nothing else."""
