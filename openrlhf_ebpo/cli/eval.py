"""Measure models (`eval FLAGS`), write a report of results (`eval report`), score a file (`eval score`)."""

from __future__ import annotations

from openrlhf_ebpo.cli.dispatch import Command, dispatcher

COMMANDS = {
    "run": Command("openrlhf_ebpo.eval.run", "measure a model, or all checkpoints of a run; the word may be left out"),
    "report": Command("openrlhf_ebpo.eval.evaluation_report", "a Markdown report of results, models side by side"),
    "score": Command("openrlhf_ebpo.eval.score", "score any file with gold answers and responses, no model needed"),
}

main = dispatcher("openrlhf-ebpo eval", __doc__, COMMANDS, extra="eval", default="run")

if __name__ == "__main__":
    main()
