"""SEAMS: everything this project replaces in an installed, unmodified OpenRLHF, one row a thing.

`install()` runs in the driver and, through Ray's `worker_process_setup_hook`, in every Ray worker. It imports
nothing heavy: a row is applied right after the module it belongs to has been imported, so every later
`from module import name` sees the replacement. A replacement is a class (a mixin: a subclass of it and
upstream's class takes the name) or a function that gets the original and returns what to put in its place.
Several rows may have one target: each is applied on top of the ones before it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import inspect
from dataclasses import dataclass
from pathlib import Path

import wrapt

from openrlhf_ebpo.errors import SeamError

OPENRLHF_VERSION = "0.11.2"


@dataclass(frozen=True)
class Seam:
    """One replacement.

    module, name: what is replaced (`name` may be dotted: a method of a class).
    replacement: "module:object", imported only when the row is applied.
    where: the processes that it matters in. why: what upstream does otherwise. until: when the row can go.
    source: first 12 hex digits of the SHA-256 of the target's source; None for targets outside OpenRLHF.
    """

    module: str
    name: str
    replacement: str
    where: str
    why: str
    until: str
    source: str | None = None

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


SEAMS = (
    Seam(
        "openrlhf.trainer.ppo_utils.experience_maker",
        "RemoteExperienceMaker",
        "openrlhf_ebpo.experience_maker:EBPOExperienceMaker",
        where="controller",
        why="upstream knows no estimator 'ebpo'; it also walks every response token by token, and clamps the value "
        "after the baseline. Other estimators go through upstream's own method; this one only reads their result.",
        until="upstream has a registry of advantage estimators with state",
        source="351a52599ac6",
    ),
    Seam(
        "openrlhf.trainer.ppo_trainer",
        "PPOTrainer",
        "openrlhf_ebpo.trainer:sync_trainer",
        where="driver",
        why="carries the prior into client_states and the run directory through fit, saving and evaluation; and runs "
        "on the driver's node, where the run directory is",
        until="upstream has trainer callbacks",
        source="5d13ed090ca7",
    ),
    Seam(
        "openrlhf.trainer.ppo_trainer_async",
        "TrainingActor",
        "openrlhf_ebpo.trainer:async_trainer",
        where="PPOTrainerAsync's process",
        why="as PPOTrainer: in async mode it is this actor that trains, saves and logs",
        until="upstream has trainer callbacks",
        source="49680a82ee4a",
    ),
    Seam(
        "openrlhf.trainer.ppo_trainer_async",
        "PPOTrainerAsync",
        "openrlhf_ebpo.trainer:on_this_node",
        where="driver",
        why="it creates the TrainingActor, which belongs on the driver's node",
        until="upstream has trainer callbacks",
        source="576117b63be4",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.rewards.guard:GuardedSamplesGenerator",
        where="controller, sample generator",
        why="a sample whose reward failed comes without one, and mixing it with the others crashes far from the cause",
        until="upstream excludes such samples or raises where the reward fails",
        source="11458b2545a7",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.prompts:SamplesWithClusters",
        where="controller, sample generator",
        why="upstream drops a prompt's data source on the way to its samples; the run log and the estimator need the "
        "cluster that a prompt belongs to",
        until="upstream carries columns of the data set to the experience",
        source="11458b2545a7",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.prompts:TrainableBatches",
        where="controller, sample generator",
        why="a rollout batch that does not fill its optimizer steps (the last of an episode) makes several ranks wait for "
        "each other forever, stops the run where it is smaller than their number, or is dropped after the prior has seen it",
        until="upstream cuts such batches itself",
        source="11458b2545a7",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.rendering:PromptsNameTheirTokenizer",
        where="controller, sample generator",
        why="upstream pickles the whole tokenizer for every prompt, and unpickles it in the rollout actor: one to two "
        "minutes of the controller a step of 512 prompts, and seconds of every engine's event loop",
        until="upstream loads the tokenizer in the rollout actor",
        source="11458b2545a7",
    ),
    Seam(
        "openrlhf.datasets.prompts_dataset",
        "PromptDataset",
        "openrlhf_ebpo.prompts:PromptsWithClusters",
        where="controller, sample generator",
        why="it keeps four columns of the data set, none of them the cluster",
        until="upstream carries columns of the data set to the experience",
        source="c67a76171e1f",
    ),
    Seam(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.setup_dataloader",
        "openrlhf_ebpo.prompts:order_as_asked",
        where="controller, sample generator",
        why="the prompts are always shuffled, which undoes a curriculum (--data.order as_is)",
        until="upstream has a flag for the order",
        source="f4b22fa08dc3",
    ),
    Seam(
        "openrlhf.utils.agent",
        "SingleTurnAgentExecutor",
        "openrlhf_ebpo.rewards.guard:GuardedSingleTurnExecutor",
        where="rollout actors",
        why="upstream logs a failing reward function at INFO and goes on without a reward, and takes None, NaN, "
        "infinity and wrong lengths as they come; here the error travels with the sample. It waits for ever for one "
        "that hangs, or ends with SystemExit or StopIteration",
        until="upstream reports reward errors and has a time limit",
        source="e06d107899c7",
    ),
    Seam(
        "openrlhf.utils.agent",
        "MultiTurnAgentExecutor",
        "openrlhf_ebpo.rewards.guard:GuardedMultiTurnExecutor",
        where="rollout actors, with --train.agent_func_path",
        why="upstream waits for ever for an agent that hangs, and one that raises stops the run; here its reward has failed",
        until="upstream reports agents' errors and has a time limit",
        source="251641a99dd5",
    ),
    Seam(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_ebpo.rewards.guard:LimitedRolloutActor",
        where="rollout actors",
        why="upstream makes the executor of a reward's address alone, and --reward.timeout has to reach it",
        until="upstream has a time limit for rewards",
        source="eb61743a7634",
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "PolicyModelActor",
        "openrlhf_ebpo.checkpoint:PolicyWithPrior",
        where="policy actors",
        why="writes prior.json beside each exported model, the final export included, which train() asks for without "
        "the trainer",
        until="upstream lets a trainer add files to a checkpoint",
        source="92c64969980b",
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "openrlhf_ebpo.policy_metrics:PolicyMetrics",
        where="policy actors",
        why="upstream logs entropy only with --actor.entropy_coef, then with gradient over the whole logit tensor; and "
        "a micro-batch whose samples are all excluded turns its means into NaN",
        until="upstream logs entropy without gradient, and guards masked means",
        source="afd1137caf53",
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "openrlhf_ebpo.lora:MergedWeightSync",
        where="policy actors, with --ds.lora.rank",
        why="upstream sends vLLM the names and tensors of the adapted model (base_model.…, lora_A, lora_B), which vLLM "
        "does not have: LoRA stops at the first weight sync",
        until="upstream merges adapters at the weight sync",
        source="afd1137caf53",
    ),
    Seam(
        "openrlhf.utils.loss_utils",
        "get_loss_batch_info",
        "openrlhf_ebpo.policy_metrics:more_than_no_tokens",
        where="policy actors, with --train.dynamic_batch_enable",
        why="an optimizer step whose samples are all excluded divides 0 by 0, and the NaN reaches the weights",
        until="upstream clamps the token count",
        source="5ff6166e43e6",
    ),
    Seam(
        "openrlhf.utils.loss_utils",
        "_optimizer_step_loss_norm",
        "openrlhf_ebpo.policy_metrics:more_than_no_tokens",
        where="policy actors, without it",
        why="as get_loss_batch_info",
        until="upstream clamps the token count",
        source="ebf549cde744",
    ),
    Seam(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.save_ckpt",
        "openrlhf_ebpo.checkpoint:save_then_rotate",
        where="policy and critic actors, train_sft",
        why="upstream deletes an old checkpoint (also the best one) before the new one is written: a crash in between "
        "loses both; and it writes `latest` in place",
        until="upstream saves first",
        source="7a036f572da7",
    ),
    Seam(
        "openrlhf.trainer.ray.launcher",
        "RayActorGroup.async_init_model_from_pretrained",
        "openrlhf_ebpo.cluster:engines_too",
        where="driver",
        why="nobody looks whether the rollout engines start: where one does not, the policy waits for it to join the weight "
        "sync, and the driver for the policy, for ever",
        until="upstream waits for its engines",
        source="3c293c3e9178",
    ),
    Seam(
        "transformers.dynamic_module_utils",
        "resolve_trust_remote_code",
        "openrlhf_ebpo.remote_code:decided_by_the_flag",
        where="every process",
        why="upstream passes trust_remote_code=True wherever it loads a model or a tokenizer, so a config.json can name "
        "code that is then fetched and run",
        until="upstream has a flag for it, off by default",
    ),
    Seam(
        "transformers.dynamic_module_utils",
        "get_class_in_module",
        "openrlhf_ebpo.remote_code:refused_without_the_flag",
        where="every process",
        why="not every way to a model's own code asks resolve_trust_remote_code, and this is where all of them end",
        until="as resolve_trust_remote_code",
    ),
    Seam(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_ebpo.remote_code:EngineTrustsAsAsked",
        where="rollout actors",
        why="upstream starts vLLM with trust_remote_code=True, and vLLM's core is a process without our rows",
        until="as resolve_trust_remote_code",
        source="eb61743a7634",
    ),
    Seam(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.load_ckpt",
        "openrlhf_ebpo.checkpoint:load_newest_whole",
        where="policy and critic actors, train_sft",
        why="upstream goes by `latest` alone: without it a run begins at step 0 and rotates good checkpoints away, and "
        "with a damaged newest one it never tries the one before",
        until="upstream looks for a checkpoint that is whole",
        source="6ff8e416fcea",
    ),
    Seam(
        "transformers.utils.import_utils",
        "is_sklearn_available",
        "openrlhf_ebpo.upstream:unavailable",
        where="every process",
        why="where scikit-learn is installed (our topics need it), transformers imports it, SciPy and pandas for assisted "
        "decoding, which nothing here uses: about a second of every process of a training",
        until="transformers imports it where it uses it",
    ),
)


def install() -> None:
    """Arrange for every row to be applied as its module is imported. Calling it again changes nothing.

    Raises:
        SeamError: the installed OpenRLHF has another version.
    """
    if install.done:
        return
    check_version()
    seams = all_seams()
    if is_cpu_stack():
        from openrlhf_ebpo import cpu

        cpu.prepare_process()
    for module in {seam.module for seam in seams}:
        rows = [seam for seam in seams if seam.module == module]
        wrapt.register_post_import_hook(functools.partial(_apply_rows, rows), module)
    install.done = True


install.done = False


def all_seams() -> tuple[Seam, ...]:
    """The rows that this machine needs."""
    if not is_cpu_stack():
        return SEAMS
    from openrlhf_ebpo import cpu

    return SEAMS + cpu.SEAMS


def check_version() -> None:
    try:
        found = importlib.metadata.version("openrlhf")
    except importlib.metadata.PackageNotFoundError:
        raise SeamError(
            f"OpenRLHF is not installed. With a GPU: pip install 'openrlhf[vllm]=={OPENRLHF_VERSION}'; without one: "
            "bash scripts/quickstart.sh sets everything up (requirements/cpu.txt)."
        ) from None
    if found != OPENRLHF_VERSION:
        raise SeamError(
            f"OpenRLHF {found} is installed, and this version of openrlhf_ebpo is written for {OPENRLHF_VERSION}: "
            f"pip install 'openrlhf=={OPENRLHF_VERSION}' (docs/upgrading.md says how to move to another release)."
        )


def check_sources(seams: tuple[Seam, ...]) -> None:
    """Hold every row against the installed source, without importing it.

    Raises:
        SeamError: a target is gone or its source differs from the one the row was written for.
    """
    for seam in seams:
        if seam.source is None:
            continue
        found = source_fingerprint(seam.module, seam.name)
        if found != seam.source:
            state = "is gone" if found is None else f"has changed (fingerprint {found}, expected {seam.source})"
            raise SeamError(
                f"seam {seam}: upstream's {seam.name} {state}. It is replaced by {seam.replacement} because {seam.why}. "
                f"Reinstall openrlhf=={OPENRLHF_VERSION}, or adapt the row (docs/upgrading.md)."
            )


def source_fingerprint(module: str, name: str) -> str | None:
    """Fingerprint of a function's or class's source text; None where there is none."""
    path = module_path(module)
    if not path.is_file():
        return None
    source = path.read_text()
    node = ast.parse(source)
    for part in name.split("."):
        node = next((n for n in getattr(node, "body", ()) if getattr(n, "name", None) == part), None)
        if node is None:
            return None
    return hashlib.sha256(ast.get_source_segment(source, node).encode()).hexdigest()[:12]


def module_path(module: str) -> Path:
    """File of a module of an installed package, found without importing the package's own code."""
    package, _, rest = module.partition(".")
    root = Path(importlib.util.find_spec(package).origin).parent
    path = root.joinpath(*rest.split(".")) if rest else root
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def is_cpu_stack() -> bool:
    """Whether the installed torch is a build without CUDA or ROCm. Read from its version file: the same answer in
    every process of a machine, whatever devices that process may see, and torch need not be imported."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        raise SeamError("torch is not installed; see the README for the two ways to install the stack")
    version = {}
    exec((Path(spec.origin).parent / "version.py").read_text(), version)
    return version.get("cuda") is None and version.get("hip") is None


def _apply_rows(rows: list[Seam], module) -> None:
    for seam in rows:
        apply(seam, module)


def apply(seam: Seam, module) -> None:
    """Put one replacement in place. A list of what was applied, kept on the replacement, makes a second call a no-op.

    Raises:
        SeamError: the target does not exist.
    """
    *owners, name = seam.name.split(".")
    owner = functools.reduce(lambda found, part: getattr(found, part, None), owners, module)
    original = getattr(owner, name, None)
    if original is None:
        raise SeamError(f"seam {seam}: no such target in the installed package")
    applied = getattr(original, "_ebpo_seams", ())
    if seam.replacement in applied:
        return
    path, _, attribute = seam.replacement.partition(":")
    replacement = getattr(importlib.import_module(path), attribute)
    new = subclass(original, replacement) if inspect.isclass(replacement) else replacement(original)
    new._ebpo_seams = (*applied, seam.replacement)
    setattr(owner, name, new)


def unavailable(original):
    return functools.wraps(original)(lambda: False)


def subclass(original, mixin: type):
    """A subclass of `mixin` and upstream's class, a Ray actor class again if that was one, options kept."""
    metadata = getattr(original, "__ray_metadata__", None)
    base = metadata.modified_class.__ray_actor_class__ if metadata else original
    new = type(mixin.__name__, (mixin, base), {"__doc__": mixin.__doc__})
    if metadata is None:
        return new
    import ray

    options = {k: v for k, v in original._default_options.items() if v is not None}
    return ray.remote(**options)(new) if options else ray.remote(new)
