"""Models, runs and results to and from the Hugging Face Hub, on huggingface_hub.

A saved model goes this way: `training` queues a snapshot of it (`model_files` chooses the files, `outbox` keeps them) →
`pusher`, a detached process, or `push_command` → `push`, one step at a time → `card`, `notes` → `content`, the filter that
all published files pass → `upload`, one commit. `run_data` (with `run_card`, `tables`, `evaluations`) and `space` publish
through the same filter and upload; `pull` goes the other way. `places` and `training_flags` check repos and flags first.
"""
