"""The evaluation harness: tasks, protocols, generation, scoring, metrics, report.

tasks/        what is asked: questions, gold answers, rules for scoring
protocols.py  how it is asked and scored: named, versioned sets of settings
prompts.py    how a question becomes a prompt, as in the model's training
released.py   how the authors' released script scores
run.py        the command: models.py (which models), jobs.py (what is done, on disk), generate.py (vLLM)
"""
