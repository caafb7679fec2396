"""Models, runs and results to and from the Hugging Face Hub, on huggingface_hub.

A saved model goes this way: `push` lists what a run has exported and the Hub lacks, in rounds that a child of the
training runs too (`training`); each step goes with its `card` (`evaluations`, `asking`) → `content`, the filter that
all published files pass (`model_files` chooses them, `public` cleans records) → `publish`, one commit, verified and
tagged. `run_data` and `space` publish through the same filter; `pull` goes the other way. `hub_settings` has the flags.
Nothing is recorded about a push: the repo's tags and hashes tell what it lacks.
"""
