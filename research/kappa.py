"""The two numbers that say which baseline wins, p and κ, measured on the small transformer; and what they predict.

κ = E[‖s‖² | fail] / E[‖s‖² | pass] with the true gradient s of every single response, at the warm start of each cell,
next to the proxy that training has for nothing, Σ (1 − π)² over a response's tokens. Predicted is the effective sample
size that gradient_variance.py measures: how many of Dr. GRPO's batches one batch of another estimator is worth
(lab/variance_formulas.py).

    python research/kappa.py --output runs/learning --export docs/results/kappa.json     measure and predict
    python research/kappa.py --compare docs/results/kappa.json --plot kappa.png     predictions and measurements
    python research/kappa.py --model runs/smollm2/model --tasks 60 --output runs/smollm2_kappa      a language model's κ
    python research/kappa.py --model docs/results/kappa_smollm2_sums.json                   the same from saved scores

--model samples 8 responses to each task, saves their scores task by task, and prints κ of all that are there; repeat to
resume, or with more --tasks. --compare reads measurements that `gradient_variance.py --export FILE` wrote (--measured
FILE).
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lab import model_scores, policy, tasks, variance_formulas
from lab.cells import CELLS, Cell
from lab.learner import build, draws, examples
from lab.markdown_tables import table
from lab.measured import measure
from lab.statistics import Ratio, interval, ratio
from lab.summaries import title
from lab.warm_starts import warm_start
from openrlhf_ebpo.command import command
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.files import write_text

PREDICTED = ["ebpo", "global_mean", "score_weighted", "raw_reward"]
AT_THE_START = [
    *("g2-5", "g4-5", "g8-5", "g16-5", "g4-1", "g4-10", "g2-30", "g4-30", "g8-30", "g4-60"),
    *("mixed", "wrong", "sort"),
]
AT_ONCE = 256  # responses whose gradients are computed together
MEASURED = Path("docs/results/gradient_variance.json")


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cells", nargs="+", choices=[*CELLS], default=AT_THE_START, metavar="CELL")
    add("--seeds", type=int, default=10)
    add("--responses", type=int, default=2048, help="of each seed, 8 to a prompt (2048)")
    add("--threads", type=int, default=2, help="of torch (2)")
    add("--output", type=Path, default=Path("runs/learning"), help="where learning.py keeps warm starts")
    add("--export", type=Path, metavar="FILE", help="write what was measured and predicted")
    add("--compare", type=Path, metavar="FILE", help="measure nothing: read the predictions of --export")
    add("--measured", type=Path, metavar="FILE", default=MEASURED, help=f"for --compare ({MEASURED})")
    add("--model", type=Path, metavar="DIR", help="a language model, in place of the cells; or the scores of --export")
    add("--task", default="sums", help="of --model: one of learning_smollm2.py (sums)")
    add("--tasks", type=int, default=60, help="of --model, 8 responses to each (60)")
    add("--minutes", type=float, default=math.inf, help="of --model: begin no further task after so many")
    add("--plot", type=Path, metavar="FILE", help="of --compare: a PNG")


def run(args: argparse.Namespace) -> None:
    if args.compare:
        compare(json.loads(args.compare.read_text()), json.loads(args.measured.read_text()), args.plot)
        return
    torch.set_num_threads(args.threads)
    if args.model:
        of_model(args)
        return
    found = []
    for name in args.cells:
        cell, start = CELLS[name], (CELLS[name].task, CELLS[name].examples, CELLS[name].start)
        weights = warm_start(args.output / "warm_starts", tasks.shape(), *start, list(range(args.seeds)))
        found.append({"cell": name, **of_cell(cell, weights, args.responses)})
    print(table(list(KAPPA_COLUMNS), [[column(each) for column in KAPPA_COLUMNS.values()] for each in found]))
    print("\nPredicted effective sample size, from every response's norm (in brackets: from p and κ alone):\n")
    print(table(["cell", *map(title, PREDICTED)], [predicted_row(each) for each in found]))
    if args.export:
        export(args.export, found)


def export(path: Path, lines: list[dict]) -> None:
    write_text(path, "[\n" + ",\n".join(map(json.dumps, lines)) + "\n]\n")


def of_model(args: argparse.Namespace) -> None:
    if args.model.is_file():
        records = json.loads(args.model.read_text())
    else:
        job = model_scores.ModelScores(str(args.model.absolute()), args.task)
        records = measure([job], range(args.tasks), args.output, minutes=args.minutes).of(job)
    passed = np.array([record["passed"] for record in records])
    found = {"tasks": len(passed), "p": passed.mean(), "its deviation over tasks": passed.mean(1).std()}
    print(", ".join(f"{name} {value:.3g}" for name, value in found.items()))
    print(f"threshold {variance_formulas.threshold(float(passed.mean())):.2f}\n")
    print(table(["κ by", "pooled", "within tasks"], model_scores.rows(records)))
    if args.export:
        export(args.export, records)


def of_cell(cell: Cell, weights: torch.Tensor, responses: int) -> dict:
    """Success rates, κ by true gradients and by the proxy, and predictions: a number a seed in each list."""
    measured = [of_seed(cell, seed, weights[seed : seed + 1], responses) for seed in range(len(weights))]
    return {key: [round(float(each[key]), 5) for each in measured] for key in measured[0]}


def of_seed(cell: Cell, seed: int, weights: torch.Tensor, responses: int) -> dict:
    shape, group = tasks.shape(), 8
    many = replace(cell, group=group, rollouts=responses, steps=1)
    words, uniforms = next(draws(many, [seed], replicate=0))
    prompts, answers = examples(cell.task, words)
    rollouts = policy.generate(shape, weights, prompts, uniforms)
    passed = (rollouts.tokens == answers[:, :, None]).all(-1)[0].numpy()
    rates = policy.success(shape, weights, prompts, answers)[0].double().numpy()
    norms, gradient, shared = scores(shape, weights, prompts, rollouts, passed)
    proxy = ((1 - rollouts.log_probs.exp()) ** 2 * rollouts.mask).sum(-1)[0].double().numpy()
    kappa, p = norms[~passed].mean() / norms[passed].mean(), rates.mean()
    unit = (norms * passed).mean()
    shrinkage = variance_formulas.leave_one_out_shrinkage(ebpo_shrinkage(cell, seed, weights), cell.group)
    found = {
        "p": p,
        "spread": rates.std(),
        "kappa": kappa,
        "kappa_within": model_scores.within(passed, norms),
        "proxy": proxy[~passed].mean() / proxy[passed].mean(),
        "gradient": gradient / unit,
        "shared": shared / unit,
        "shrinkage": shrinkage,
    }
    for name in PREDICTED:
        found[f"{name} alike"] = of_two_numbers(name, p, kappa, shrinkage, cell.group)
        found[name] = of_every_response(name, rates, passed, norms / unit, found, cell.group)
    return found


def scores(shape, weights, prompts, rollouts: policy.Rollouts, passed: np.ndarray) -> tuple[np.ndarray, float, float]:
    """‖s‖² of each response, (M, G); ‖E[r s]‖² from pairs of responses to different prompts, and the mean of each
    prompt's own from pairs of responses to the same.

    Every response has a copy of the weights for itself, so that one backward pass gives all their gradients apart.
    """
    _, count, group, length = rollouts.tokens.shape
    tokens = rollouts.tokens.view(-1, 1, 1, length)
    mask = rollouts.mask.view(-1, 1, 1, length)
    repeated = prompts[0].repeat_interleave(group, 0)[:, None]
    norms, shares, total = [], [], torch.zeros(weights.shape[1], dtype=torch.double)
    right = torch.as_tensor(passed.ravel())
    for at in range(0, count * group, AT_ONCE):
        some = slice(at, at + AT_ONCE)
        copies = weights.detach().expand(len(tokens[some]), -1).clone().requires_grad_()
        log_probs = policy.log_probs(shape, copies, repeated[some], tokens[some])[0] * mask[some]
        (gradients,) = torch.autograd.grad(log_probs.sum(), copies)
        norms.append(gradients.double().square().sum(-1))
        by_prompt = (gradients * right[some, None]).view(-1, group, weights.shape[1]).double().sum(1)
        shares.append(by_prompt.square().sum(-1))
        total += by_prompt.sum(0)
    found, own = torch.cat(norms), torch.cat(shares)
    shared = float(own.sum() - found[right].sum()) / (count * group * (group - 1))
    gradient = float(total.square().sum() - own.sum()) / (count * (count - 1) * group**2)
    return found.view(count, group).numpy(), gradient, shared


def ebpo_shrinkage(cell: Cell, seed: int, weights: torch.Tensor, steps: int = 10) -> float:
    """The mean S of the paper's preset over a few batches of this policy."""
    estimator, shape = build("ebpo", cell.group)[0], tasks.shape()
    state, found = estimator.initial(), []
    for words, uniforms in draws(replace(cell, steps=steps), [seed], replicate=1):
        prompts, answers = examples(cell.task, words)
        rollouts = policy.generate(shape, weights, prompts, uniforms)
        rewards = (rollouts.tokens == answers[:, :, None]).all(-1)[0].double().numpy()
        step = estimator.step(Batch.of(rewards, np.ones_like(rewards, dtype=bool)), state)
        state = step.state
        found.append(float(step.shrinkage.mean()))
    return float(np.mean(found[2:]))


def of_two_numbers(name: str, p: float, kappa: float, shrinkage: float, group: int) -> float:
    """Effective sample size over leave-one-out's, Dr. GRPO's up to scale, from p and κ alone: as if all prompts were
    alike."""
    constants = {"score_weighted": variance_formulas.best_constant(p, kappa), "raw_reward": 0.0}
    if name in constants:
        mine = variance_formulas.with_baseline(p, kappa, constants[name])
    else:
        mine = variance_formulas.variance(p, kappa, shrinkage if name == "ebpo" else 1.0, group)
    return variance_formulas.variance(p, kappa, 0.0, group) / mine


def of_every_response(
    name: str, rates: np.ndarray, passed: np.ndarray, norms: np.ndarray, found: dict, group: int
) -> float:
    """The same from each prompt's success rate and each response's norm, and with what the responses to a prompt
    share."""

    def noise(shrinkage: float, target: float) -> float:
        means = ((1 - shrinkage) * rates + shrinkage * target)[:, None]
        spread = ((1 - shrinkage) ** 2 * rates * (1 - rates) / (group - 1))[:, None]
        variance = float((norms * ((passed - means) ** 2 + spread)).mean())
        return variance_formulas.of_a_group(variance, found["shared"], found["gradient"], shrinkage, group)

    mean = float(rates.mean())
    constants = {"global_mean": mean, "score_weighted": float((norms * passed).sum() / norms.sum()), "raw_reward": 0.0}
    return noise(0.0, mean) / (noise(1.0, constants[name]) if name in constants else noise(found["shrinkage"], mean))


def text(values: list[float], digits: int = 2) -> str:
    return interval(np.array(values)).text(digits).lstrip("+")


KAPPA_COLUMNS = {
    "cell": lambda each: f"`{each['cell']}`",
    "p": lambda each: f"{np.mean(each['p']):.3f}",
    "its deviation over prompts": lambda each: f"{np.mean(each['spread']):.3f}",
    "κ": lambda each: text(each["kappa"], 1),
    "κ within prompts": lambda each: text(each["kappa_within"], 1),
    "κ by Σ(1−π)²": lambda each: text(each["proxy"], 1),
    "threshold": lambda each: f"{variance_formulas.threshold(float(np.mean(each['p']))):.2f}",
    "‖g‖²": lambda each: f"{np.mean(each['gradient']):.3f}",
    "of each prompt": lambda each: f"{np.mean(each['shared']):.3f}",
}


def predicted_row(each: dict) -> list[str]:
    """The mean over seeds of the logarithm, as gradient_variance.py has it."""
    geometric = lambda name: np.exp(np.mean(np.log(each[name])))  # noqa: E731
    return [f"`{each['cell']}`", *(f"{geometric(n):.2f} ({geometric(f'{n} alike'):.2f})" for n in PREDICTED)]


def compare(predicted: list[dict], measured: dict[str, dict[str, list[float]]], plot: Path | None) -> None:
    """A row for each cell and estimator: predicted, measured, and their ratio; log ratios, a number a seed, in
    `measured`."""
    rows, series = [], {name: [] for name in PREDICTED}
    for each in predicted:
        for name in PREDICTED:
            if values := measured.get(each["cell"], {}).get(name):
                guess, found = np.exp(np.mean(np.log(each[name]))), ratio(np.exp(values))
                series[name].append((guess, found))
                shown = f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"
                rows.append([f"`{each['cell']}`", title(name), f"{guess:.2f}", shown, f"{found.mean / guess:.2f}"])
    print(table(["cell", "estimator", "predicted", "measured", "measured over predicted"], rows))
    if plot:
        scatter(plot, series)


def scatter(path: Path, series: dict[str, list[tuple[float, Ratio]]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure((5.2, 4.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    for (name, points), marker in zip(series.items(), "osD^", strict=True):
        guesses, (means, lows, highs) = [guess for guess, _ in points], np.array([found for _, found in points]).T
        errors = [means - lows, highs - means]
        axes.errorbar(guesses, means, errors, fmt=marker, ms=5, lw=1, alpha=0.85, label=title(name))
    ends = [0.7, 25]
    axes.plot(ends, ends, color="#6b7178", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="predicted from each response's norm", ylabel="measured")
    ticks = [0.7, 1, 1.5, 2, 3, 5, 8, 12, 20]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks], minor=False)
        axis.set_ticks([], minor=True)
    axes.set_title("Batches of Dr. GRPO that one batch is worth", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


main = command("python research/kappa.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
