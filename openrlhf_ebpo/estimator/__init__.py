"""The estimator itself: prior, shrinkage, advantages. Needs torch and numpy, nothing else."""
