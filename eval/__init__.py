"""The evaluation harness: tasks, protocols, generation, scoring, metrics, report.

Its name is openrlhf_ebpo.eval, in a checkout too. The commands import by that name, so that `python -m eval.run` there
ends in the same modules; nothing else is imported as `eval`.

tasks/        what is asked: questions, gold answers, rules for scoring
protocols.py  how it is asked and scored: named, versioned sets of settings
prompts.py    how a question becomes a prompt, as in the model's training
run.py        the command: models.py (which models), jobs.py (each task: its storage and summary), generate.py (vLLM)
grader.py     the reward `math` on answers, by the rules of their questions: answer_match.py; equal answers
reward_file.py  other rewards: a file with reward_func
score.py      the command that scores a file
metrics.py    pass@k, maj@k: intervals.py; differences.py (also of seeds and of curves: Space, quickstart, research)
evaluation_report.py  the command that writes report.md: report_tables.py, plots.py, paper.py (reported.json)

Results on disk are a part of the run directory: openrlhf_ebpo/run/results.py.
"""
