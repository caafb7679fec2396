"""Write tasks of reasoning-gym as JSON lines that training reads, and held-out ones to NAME.validation.jsonl.

  python examples/reasoning_gym/make.py chain_sum --settings '{"max_terms": 3}' --size 200 --output sums.jsonl
  openrlhf-ebpo train --data.prompt_dataset sums.jsonl --data.input_key prompt --data.label_key label \\
      --reward.remote_url examples/reasoning_gym/reward.py --eval.dataset sums.validation.jsonl ...

Columns: prompt (the question in --template), question, answer, datasource, and label, with which reward.py grades. No
question occurs twice. Needs `pip install reasoning-gym==0.1.25`; its GALLERY.md lists tasks and settings.
"""

import argparse
import json
import sys
from pathlib import Path

sys.modules.setdefault("pycosat", type(sys)("pycosat"))  # as reward.py
import reasoning_gym  # noqa: E402

TEMPLATE = "{question}\n\nGive the answer alone between <answer> and </answer>."


def packed(value):
    """Mark tuples, which JSON does not have and some scorers compare."""
    if isinstance(value, tuple):
        return {"()": [packed(item) for item in value]}
    if isinstance(value, dict):
        return {key: packed(item) for key, item in value.items()}
    return [packed(item) for item in value] if isinstance(value, list) else value


def tasks(name: str, settings: dict):
    """Yield the entries of a data set, and the label of each."""
    for entry in reasoning_gym.create_dataset(name, **settings):
        yield entry, json.dumps({"name": name, "settings": settings, "entry": packed(entry)})


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="kind of tasks, such as chain_sum")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON object: of the kind, such as its seed")
    parser.add_argument("--size", type=int, default=1000, help="tasks to train on (%(default)s)")
    parser.add_argument("--validation", type=int, default=0, help="tasks held out (%(default)s)")
    parser.add_argument("--template", default=TEMPLATE, help="text with {question} in it")
    parser.add_argument("--output", required=True, type=Path, help="a .jsonl file; its folder is made")
    args, rows = parser.parse_args(argv), {}
    for entry, label in tasks(args.name, {"seed": 0, **args.settings, "size": 20 * (args.size + args.validation)}):
        row = {"prompt": args.template.replace("{question}", entry["question"]), "question": entry["question"]}
        rows.setdefault(row["question"], {**row, "answer": entry["answer"], "datasource": args.name, "label": label})
        if len(rows) == args.size + args.validation:
            break
    else:
        sys.exit(f"error: {args.name} gave {len(rows)} different questions; give a smaller --size or other --settings")
    lines = [json.dumps(row) + "\n" for row in rows.values()]
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text("".join(lines[args.validation :]))
    args.output.with_suffix(".validation.jsonl").write_text("".join(lines[: args.validation]))


if __name__ == "__main__":
    main()
