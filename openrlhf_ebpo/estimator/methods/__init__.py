"""Estimators of the literature, one a file: what is from which paper or released code, and what was chosen where these
leave it open."""
