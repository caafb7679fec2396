"""Training data in four steps, each reads and writes Parquet or JSON lines.

prepare -> topics and/or difficulty -> order -> openrlhf-ebpo train --data.order as_is
"""

from __future__ import annotations

from openrlhf_ebpo.cli.dispatch import Command, dispatcher

COMMANDS = {
    "prepare": Command(
        "openrlhf_ebpo.data.prepare",
        "clean a data set: drop duplicates and conflicting answers, split off a validation set",
    ),
    "topics": Command("openrlhf_ebpo.data.topics", "give every prompt a topic, by sentence embeddings and K-means"),
    "difficulty": Command("openrlhf_ebpo.data.difficulty", "measure the pass rate of a model on every prompt"),
    "order": Command(
        "openrlhf_ebpo.data.order", "put the prompts in training order: clustered by topic, or easy to hard"
    ),
}

main = dispatcher("openrlhf-ebpo data", __doc__, COMMANDS, extra="data")

if __name__ == "__main__":
    main()
