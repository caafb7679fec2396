"""EBPO, an empirical-Bayes advantage estimator, for an installed and unmodified OpenRLHF."""

__version__ = "0.1.0"
