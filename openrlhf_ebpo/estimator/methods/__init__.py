"""Estimators of the literature, one a file: what is from which paper or released code, and what was chosen where these leave it
open. None uses `Batch.importance`: prompts that were drawn unevenly are trained on unevenly, and these baselines are the batch's.
"""
