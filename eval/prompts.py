"""Turn a question into the prompt that a model reads.

A model is asked as it was trained: in the instruction that its training prompts had, in the tokenizer's chat template
if training used it, in --data.input_template if there was one. The run's run.json records them, which lies in the run
directory and in every folder that `hub pull` fetches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from openrlhf_ebpo.chat_template import Kwargs, check_used, parse_kwargs, values
from openrlhf_ebpo.data.questions import DAPO_TEMPLATE, QUESTION, check_template
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.checkpoint_list import saved_steps
from openrlhf_ebpo.run.run_log import get_nested, read_known_run, read_run

from .tasks import Question

if TYPE_CHECKING:
    from openrlhf_ebpo.upstream.rendering import Prompt

TRAINING = "training"
TEMPLATES = {
    "raw": QUESTION,
    "dapo": DAPO_TEMPLATE,
    "boxed": QUESTION + "\n\nPlease reason step by step, and put your final answer within \\boxed{}.",
}
HELP = "--template dapo, boxed, raw or TEXT with {question} in it, and --chat_template or --no-chat_template"


@dataclass(frozen=True)
class PromptForm:
    """template: text with {question} in it. chat_template: whether that text is then put into the tokenizer's chat
    template, after a system message if there is one. input_template: or else into this text, in place of its {}.
    source: where it is from, for people. template_kwargs: as Protocol has them; None for none."""

    template: str
    chat_template: bool = False
    system: str | None = None
    input_template: str | None = None
    source: str = ""
    template_kwargs: Kwargs | None = None

    def given(self) -> dict:
        """Return further arguments of the chat template, by name."""
        return values(self.template_kwargs)


def prompt_form(template: str, chat_template: bool | None, run_dir: str | Path | None = None) -> PromptForm:
    """Return the form that a protocol's template and chat_template ask for.

    run_dir: run of the model, needed for "training" and for None.

    Raises:
        UsageError: it is needed and not given, or does not tell.
    """
    check_template(template, (*TEMPLATES, TRAINING))
    if template != TRAINING and chat_template is not None:
        return PromptForm(TEMPLATES.get(template, template), chat_template, source=f"--template {template}")
    if run_dir is None:
        what = "prompt template" if template == TRAINING else "use of a chat template"
        raise UsageError(f"the {what} in training is not known for this model: give its --run_dir, or say {HELP}")
    trained = training_form(run_dir)
    used = trained.chat_template if chat_template is None else chat_template
    if template == TRAINING:
        return replace(trained, chat_template=used)
    source = f"--template {template}; {trained.source}"
    return PromptForm(TEMPLATES.get(template, template), used, source=source)


def with_kwargs(form: PromptForm, template_kwargs: Kwargs, run_dir: str | Path | None) -> PromptForm:
    """Return the form whose chat template is given these; without any, those of the model's training.

    Raises:
        UsageError: it uses no chat template. RunDirectoryError: no run is in run_dir.
    """
    check_used(template_kwargs, form.chat_template, "--template_kwargs", "--chat_template")
    if not template_kwargs and form.chat_template and run_dir is not None:
        trained = _data_of(run_dir).get("template_kwargs")
        pairs = [str(each) for each in trained] if isinstance(trained, list) else []
        template_kwargs = parse_kwargs(pairs, f"{run_dir}/run.json: --data.template_kwargs")
    return replace(form, template_kwargs=template_kwargs or None)


def render_questions(questions: Iterable[Question], form: PromptForm, model: str) -> list[Prompt]:
    """Return the questions as the model gets them, by the code that makes the prompts of training; key and label are
    the question's id and gold.

    Raises:
        UsageError: the model's tokenizer or chat template does not take them.
    """
    from openrlhf_ebpo.upstream.rendering import render_prompts

    rows = ({"id": q.id, "prompt": message(form, q.question), "label": q.gold} for q in questions)
    return render_prompts(rows, model, form.chat_template, form.input_template, form.given())


def message(form: PromptForm, question: str) -> str | list[dict]:
    """Return the question in its template: text, or the turns of a chat with a system message."""
    text = form.template.replace(QUESTION, question)  # not str.format: mathematics is full of braces
    if not (form.chat_template and form.system):
        return text
    return [{"role": "system", "content": form.system}, {"role": "user", "content": text}]


def training_form(run_dir: str | Path) -> PromptForm:
    """Return the form of a run's training prompts.

    Raises:
        UsageError: the run is missing, or its training prompts have no instruction in common.
    """
    data, recorded = _data_of(run_dir), read_known_run(run_dir, "--run_dir ").get("instruction")
    if isinstance(recorded, dict) and QUESTION in str(recorded.get("template")):
        template, system = recorded["template"], recorded.get("system")
    else:
        raise UsageError(
            f"--run_dir {run_dir}: run.json has no instruction that all training prompts share: say {HELP}"
        )
    return PromptForm(
        template,
        bool(data.get("apply_chat_template")),
        system,
        data.get("input_template"),
        f"training prompts of {run_dir}",
    )


def _data_of(run_dir: str | Path) -> dict:
    """Return the flags --data.… of a run; raises RunDirectoryError if the run is missing."""
    return get_nested(read_known_run(run_dir, "--run_dir "), "args", "data") or {}


def run_of(model: str) -> Path | None:
    """Return the folder with the run.json of a model that a run exported: its run directory, if it lies where training
    puts it, or the model's own folder, as `hub pull` leaves it; None for other models."""
    path = Path(model).resolve()
    if any((path / name).is_file() for name in ("config.json", "adapter_config.json")) and read_run(path) is not None:
        return path
    places = [place for parent in path.parents[:3] for place in (parent, parent / "run")]
    for place in (path / "run", *places):
        if (run := read_run(place)) is not None:
            models = [*(each.recorded for each in saved_steps(place)), get_nested(run, "args", "ckpt", "output_dir")]
            if path in {Path(model).resolve() for model in models if model}:
                return place
    return None
