"""A small transformer as the policy, many seeds at once, for learning.py and gradient_variance.py."""
