"""SEAMS: everything this project replaces in an installed, unmodified OpenRLHF, one row per replacement.

Replacements are names, imported when a row is applied (install.py), so the table imports none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_ebpo.upstream.releases import SOURCES

# policy: also critic, reference and reward models, and the warm start. controller: also the driver and, in async
# training, the sample generator.
PROCESSES = ("controller", "policy", "rollout", "every")
KINDS = {
    "estimator": "EBPO needs it",
    "safety": "a user loses work without it",
    "cpu": "a machine without CUDA needs it",
    "speed": "a step takes a tenth longer without it",
    "option": "a flag of this package asks for it",
}


@dataclass(frozen=True)
class Seam:
    """One replacement.

    module, name: what is replaced (`name` may be dotted: a method of a class).
    replacement: "module:object", imported only when the row is applied.
    process: one of PROCESSES, where its code runs. kind: one of KINDS. condition: the flags without which it does
    nothing. why: what upstream does otherwise. until: when the row can go.
    link: upstream's issue or pull request about it, where we know one.
    """

    module: str
    name: str
    replacement: str
    process: str
    kind: str
    why: str
    until: str
    condition: str = ""
    link: str = ""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]

    @property
    def sources(self) -> tuple[str, ...]:
        """Fingerprints of the target's sources that the row fits; none for what is only known by its name."""
        return SOURCES.get(str(self), ())

    @property
    def label(self) -> str:
        """The row on one line, for a run's record."""
        return f"{self}: {self.replacement.partition(':')[2]}"


SEAMS = (
    Seam(
        "openrlhf.trainer.ppo_utils.experience_maker",
        "RemoteExperienceMaker",
        "openrlhf_ebpo.upstream.controller.experience_maker:EBPOExperienceMaker",
        process="controller",
        kind="estimator",
        why="upstream knows no estimator 'ebpo'; it also walks every response token by token, and clamps the value "
        "after the baseline. Other estimators go through upstream's own method; this one only reads their result.",
        until="upstream has a registry of advantage estimators with state",
    ),
    Seam(
        "openrlhf.trainer.ppo_trainer",
        "PPOTrainer",
        "openrlhf_ebpo.upstream.controller.trainer:ebpo_trainer",
        process="controller",
        kind="estimator",
        why="carries the prior into client_states and the run directory through fit, saving and evaluation; and runs "
        "on the driver's node, where the run directory is",
        until="upstream has trainer callbacks",
    ),
    Seam(
        "openrlhf.trainer.ppo_trainer_async",
        "TrainingActor",
        "openrlhf_ebpo.upstream.controller.trainer:ebpo_trainer_async",
        process="controller",
        kind="estimator",
        why="as PPOTrainer: in async mode it is this actor that trains, saves, evaluates and logs",
        until="upstream has trainer callbacks",
    ),
    Seam(
        "openrlhf.trainer.ppo_trainer_async",
        "GenerateSamplesActor",
        "openrlhf_ebpo.upstream.controller.scheduled_evaluation:NoEvaluation",
        process="controller",
        kind="estimator",
        why="it evaluates when it comes to it: with later weights, behind the batches that wait for the trainer, and "
        "not after the last prompt; the trainer evaluates instead",
        until="upstream evaluates a step with its own weights",
    ),
    Seam(
        "openrlhf.trainer.ppo_trainer_async",
        "PPOTrainerAsync",
        "openrlhf_ebpo.upstream.controller.trainer:on_this_node",
        process="controller",
        kind="estimator",
        why="it creates the TrainingActor, which belongs on the driver's node",
        until="upstream has trainer callbacks",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.upstream.controller.guarded_samples:GuardedSamplesGenerator",
        process="controller",
        kind="safety",
        why="a sample whose reward failed comes without one, and mixing it with the others crashes far from the cause; "
        "the overlong penalty counts an agent's tool output as its response",
        until="upstream excludes such samples or raises where the reward fails, and counts generated tokens",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.upstream.controller.prompts:SamplesWithClusters",
        process="controller",
        kind="estimator",
        why="upstream drops a prompt's data source on the way to its samples; the prompt's cluster goes to the "
        "run log and, as `batch.clusters`, to estimators (EBPO with clusters)",
        until="upstream carries columns of the data set to the experience",
        link="https://github.com/OpenRLHF/OpenRLHF/issues/1077",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.upstream.controller.prompts:TrainableBatches",
        process="controller",
        kind="safety",
        why="a rollout batch that does not fill its optimizer steps (the last of an episode) makes several ranks wait "
        "for each other forever, stops the run where it is smaller than their number, or is dropped after the prior "
        "has seen it",
        until="upstream cuts such batches itself",
        link="https://github.com/OpenRLHF/OpenRLHF/issues/717",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.upstream.controller.in_flight:SamplesInFlight",
        process="controller",
        kind="safety",
        why="samples that were generated for a later step are in no checkpoint, and for the data loader their prompts "
        "are over: a resumed run leaves them out",
        until="upstream saves which prompts are in flight",
    ),
    Seam(
        "openrlhf.trainer.ppo_utils.samples_generator",
        "SamplesGenerator",
        "openrlhf_ebpo.upstream.controller.prompts:PromptsNameTheirTokenizer",
        process="controller",
        kind="speed",
        why="upstream pickles the whole tokenizer for every prompt, and unpickles it in the rollout actor: one to two "
        "minutes of the controller per step of 512 prompts, and seconds of every engine's event loop",
        until="upstream loads the tokenizer in the rollout actor",
    ),
    Seam(
        "openrlhf.datasets.prompts_dataset",
        "PromptDataset",
        "openrlhf_ebpo.upstream.controller.prompts:PromptsWithClusters",
        process="controller",
        kind="estimator",
        why="it keeps four columns of the data set, none of them the cluster",
        until="upstream carries columns of the data set to the experience",
    ),
    Seam(
        "openrlhf.utils.utils",
        "get_tokenizer",
        "openrlhf_ebpo.upstream.rendering:with_template_kwargs",
        process="every",
        kind="option",
        condition="with --data.template_kwargs",
        why="upstream passes nothing to the chat template: a model that thinks by default can be trained no other way",
        until="upstream has a flag for it",
    ),
    Seam(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.setup_dataloader",
        "openrlhf_ebpo.upstream.controller.prompts:keep_requested_order",
        process="controller",
        kind="safety",
        why="the prompts are always shuffled, which undoes a curriculum (--data.order as_is), by no seed (shuffle); "
        "and a resumed run repeats an episode whose end the loader has seen",
        until="upstream has a flag for the order",
    ),
    Seam(
        "openrlhf.utils.agent",
        "SingleTurnAgentExecutor",
        "openrlhf_ebpo.upstream.rollout.guarded_rewards:GuardedSingleTurnExecutor",
        process="rollout",
        kind="safety",
        why="upstream logs a failing reward function at INFO and continues without a reward, and takes None, NaN, "
        "infinity and wrong lengths as they come; here the error travels with the sample. It waits for ever for one "
        "that hangs, or ends with SystemExit or StopIteration, and dies of one that crashes",
        until="upstream reports reward errors and has a time limit",
    ),
    Seam(
        "openrlhf.utils.agent",
        "MultiTurnAgentExecutor",
        "openrlhf_ebpo.upstream.rollout.guarded_rewards:GuardedMultiTurnExecutor",
        process="rollout",
        kind="safety",
        condition="with --train.agent_func_path",
        why="upstream waits for ever for an agent that hangs, and one that raises stops the run; here its reward has "
        "failed. The samples of a prompt share one SamplingParams, into which each turn writes its budget: of "
        "observations of different lengths the longer ones lose their beginning",
        until="upstream reports agents' errors, has a time limit, and copies the parameters",
    ),
    Seam(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_ebpo.upstream.rollout.guarded_rewards:LimitedRolloutActor",
        process="rollout",
        kind="safety",
        why="upstream makes the executor of a reward's address alone, and --reward.timeout has to reach it",
        until="upstream has a time limit for rewards",
    ),
    Seam(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_ebpo.upstream.rollout.deaths:FailFastRolloutActor",
        process="rollout",
        kind="safety",
        why="an actor outlives its EngineCore: requests fail with 'see above', and a weight sync that waits for it "
        "never ends, as vLLM does not complete a collective_rpc whose engine has died; nor does one whose engine "
        "raises before it joins the broadcast",
        until="vLLM fails such calls with their cause, and upstream looks at its engines during a broadcast",
    ),
    Seam(
        "vllm.v1.engine.core",
        "EngineCoreProc.run_engine_core",
        "openrlhf_ebpo.upstream.rollout.deaths:end_with_actor",
        process="rollout",
        kind="safety",
        why="an EngineCore outlives an actor that is killed by SIGKILL; in a cluster that was joined nothing ends it, "
        "and on a GPU a restart does not get its memory",
        until="vLLM ends its EngineCore with the process that started it",
    ),
    Seam(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_ebpo.upstream.rollout.engine:MeasuredRolloutActor",
        process="rollout",
        kind="safety",
        why="without --algo.advantage.is_correction_level vLLM is not asked how likely the tokens were that it "
        "sampled, and sampling from stale weights goes unnoticed",
        until="upstream always measures how far rollouts and trainer are apart",
    ),
    Seam(
        "vllm.engine.arg_utils",
        "EngineArgs.create_engine_config",
        "openrlhf_ebpo.upstream.rollout.engine:offline_defaults",
        process="rollout",
        kind="speed",
        why="vLLM gives an AsyncLLM without a server its fallbacks on every device, 128 sequences and 2,048 tokens "
        "at a time; "
        "its class LLM, which does the same work, gets 1,024 and 16,384 on an H100 (EngineArgs.get_batch_defaults)",
        until="upstream lets --vllm.* set max_num_seqs and max_num_batched_tokens",
        link="https://github.com/vllm-project/vllm/pull/37393",
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "PolicyModelActor",
        "openrlhf_ebpo.upstream.policy.checkpoint:PolicyWithPrior",
        process="policy",
        kind="estimator",
        why="writes prior.json next to each exported model, the final export included, which train() asks for without "
        "the trainer",
        until="upstream lets a trainer add files to a checkpoint",
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "openrlhf_ebpo.upstream.policy.policy_metrics:PolicyMetrics",
        process="policy",
        kind="safety",
        why="upstream logs entropy only with --actor.entropy_coef, then with gradient over the whole logit tensor; "
        "and does not measure how far a step moves the policy",
        until="upstream logs entropy without gradient",
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "openrlhf_ebpo.upstream.policy.policy_loss:CovarianceLosses",
        process="policy",
        kind="option",
        condition="with --actor.policy_loss_type clip_cov or kl_cov",
        why="upstream has no policy loss that looks at the covariance of log-probability and advantage, and its "
        "trainer makes the loss itself",
        until="upstream has these losses, or lets a trainer be given one",
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "openrlhf_ebpo.upstream.policy.micro_batches:EmptyMicroBatches",
        process="policy",
        kind="safety",
        why="upstream's means over a micro-batch whose samples are all excluded are NaN, and so are those of the step",
        until="upstream guards its masked means",
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "openrlhf_ebpo.upstream.policy.weight_sync:MergedWeightSync",
        process="policy",
        kind="safety",
        condition="with --ds.lora.rank",
        why="upstream sends vLLM the names and tensors of the adapted model (base_model.…, lora_A, lora_B), which vLLM "
        "does not have: LoRA stops at the first weight sync",
        until="upstream merges adapters at the weight sync",
        link="https://github.com/OpenRLHF/OpenRLHF/issues/1349",
    ),
    *(
        Seam(
            f"openrlhf.trainer.ray.ppo_{role}",
            f"{role.capitalize()}PPOTrainer",
            f"openrlhf_ebpo.upstream.policy.micro_batches:{mixin}",
            process="policy",
            kind="safety",
            condition="with --train.dynamic_batch_enable",
            why="upstream tells DeepSpeed of one micro-batch an optimizer step, so every backward pass counts as the "
            "last: ZeRO 1 and 2 keep the gradient of the last micro-batch alone",
            until="upstream sets DeepSpeed's accumulation boundary",
        )
        for role, mixin in (("actor", "AccumulatingPolicy"), ("critic", "AccumulatingCritic"))
    ),
    Seam(
        "openrlhf.trainer.ray.ppo_actor",
        "ActorPPOTrainer",
        "openrlhf_ebpo.upstream.policy.weight_sync:BoundedEngineWait",
        process="policy",
        kind="safety",
        why="rank 0 gives engines that still load vLLM's 300 s to connect (StatelessProcessGroup.create), too few for "
        "a large model, and the other ranks wait in a barrier that NCCL's watchdog aborts without a cause",
        until="upstream waits for its engines before it makes the weight-sync group",
    ),
    *(
        Seam(
            module,
            name,
            f"openrlhf_ebpo.upstream.policy.health:{mixin}",
            process="policy",
            kind="safety",
            why="a NaN in loss, gradient or weights stops nothing: DeepSpeed leaves the step out in silence, or takes "
            "it, and the weights go to the engines and over good checkpoints",
            until="upstream checks its steps and weights",
        )
        for module, name, mixin in (
            ("openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer", "HealthyPolicy"),
            ("openrlhf.trainer.ray.ppo_critic", "CriticPPOTrainer", "HealthyCritic"),
            ("openrlhf.trainer.sft_trainer", "SFTTrainer", "HealthyWarmStart"),
        )
    ),
    *(
        Seam(
            "openrlhf.utils.loss_utils",
            name,
            "openrlhf_ebpo.upstream.policy.micro_batches:clamp_loss_normalisers",
            process="policy",
            kind="safety",
            why="an optimizer step whose samples are all excluded divides 0 by 0, and the NaN reaches the weights",
            until="upstream clamps the token count",
        )
        for name in ("get_loss_batch_info", "_optimizer_step_loss_norm")
    ),
    Seam(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.save_ckpt",
        "openrlhf_ebpo.upstream.policy.checkpoint:save_then_rotate",
        process="policy",
        kind="safety",
        why="upstream deletes an old checkpoint (also the best one) before the new one is written: a crash in between "
        "loses both; and it writes `latest` in place. DeepSpeed saves the host copies of a sleeping optimizer's "
        "moments",
        until="upstream saves first, and DeepSpeed leaves `*_offload_buffer` out",
    ),
    Seam(
        "openrlhf.trainer.ray.launcher",
        "RayActorGroup.async_init_model_from_pretrained",
        "openrlhf_ebpo.upstream.controller.failures:wait_for_engines_too",
        process="controller",
        kind="safety",
        why="upstream never checks that the rollout engines start, join the weight-sync group and live: if one fails, "
        "the policy waits for it, and the driver for the policy",
        until="upstream waits for its engines",
    ),
    Seam(
        "transformers.dynamic_module_utils",
        "resolve_trust_remote_code",
        "openrlhf_ebpo.upstream.remote_code:decided_by_the_flag",
        process="every",
        kind="safety",
        why="upstream passes trust_remote_code=True wherever it loads a model or a tokenizer, so a config.json can "
        "name code that is then fetched and run",
        until="upstream has a flag for it, off by default",
    ),
    Seam(
        "transformers.dynamic_module_utils",
        "get_class_in_module",
        "openrlhf_ebpo.upstream.remote_code:refused_without_the_flag",
        process="every",
        kind="safety",
        why="not every way to a model's own code asks resolve_trust_remote_code, and this is where all of them end",
        until="as resolve_trust_remote_code",
        link="https://github.com/vllm-project/vllm/pull/32194",
    ),
    Seam(
        "openrlhf.trainer.ray.vllm_engine",
        "RolloutRayActor",
        "openrlhf_ebpo.upstream.rollout.engine:EngineTrustsAsAsked",
        process="rollout",
        kind="safety",
        why="upstream starts vLLM with trust_remote_code=True, and vLLM's core is a process without our rows",
        until="as resolve_trust_remote_code",
    ),
    Seam(
        "openrlhf.utils.deepspeed.deepspeed",
        "DeepspeedStrategy.load_ckpt",
        "openrlhf_ebpo.upstream.policy.checkpoint:load_newest_complete",
        process="policy",
        kind="safety",
        why="upstream goes by `latest` alone: without it a run begins at step 0 and rotates good checkpoints away, and "
        "with a damaged newest one it never tries the one before. DeepSpeed loads the host copies of moments "
        "onto the GPU",
        until="upstream looks for a complete checkpoint, and DeepSpeed leaves `*_offload_buffer` out",
    ),
)
