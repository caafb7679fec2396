"""Estimators of the literature, one a file: what was taken from which paper, and what was chosen where it leaves it open."""
