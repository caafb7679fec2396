"""Every row of SEAMS against the installed package: replaced; untouched when off; twice is once; a miss raises."""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from openrlhf_ebpo.engines import cluster
from openrlhf_ebpo.errors import SeamError
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.upstream import __main__ as printer
from openrlhf_ebpo.upstream import check, flash_attn, releases
from openrlhf_ebpo.upstream.check import check_release, check_unchanged, source_fingerprint
from openrlhf_ebpo.upstream.cpu import cpu_replacements as cpu_rows
from openrlhf_ebpo.upstream.cpu import gloo_sync
from openrlhf_ebpo.upstream.install import REPLACEMENTS, all_seams, apply, install
from openrlhf_ebpo.upstream.replacements import KINDS, PROCESSES, SEAMS, Seam

ROOT = Path(__file__).parents[2]
ROWS = pytest.mark.parametrize("seam", all_seams(), ids=str)


def test_every_row_is_printed_with_its_reason_and_link(capsys):
    printer.main([])
    text = " ".join(capsys.readouterr().out.split())
    for seam in all_seams():
        facts = [f"{seam}", *seam.sources[-1:], seam.process, seam.kind, seam.replacement, seam.condition, seam.why]
        assert [fact for fact in [*facts, seam.until, seam.link] if fact not in text] == [], seam


def target(seam: Seam):
    found = importlib.import_module(seam.module)
    for part in seam.name.split("."):
        found = getattr(found, part)
    return found


@ROWS
def test_the_source_is_one_that_the_row_was_written_for(seam):
    found = source_fingerprint(seam.module, seam.name)
    if seam.sources:
        assert found in seam.sources
    else:
        assert seam.package == "torch" or found is None, "a name that OpenRLHF imports"
    check_unchanged((seam,))


def test_every_known_source_belongs_to_a_row():
    rows = {str(seam) for seam in (*SEAMS, *cpu_rows.SEAMS)}
    assert set(releases.SOURCES) <= rows


@ROWS
def test_the_row_says_where_why_and_until_when(seam):
    assert seam.process in PROCESSES and seam.kind in KINDS
    assert (seam in cpu_rows.SEAMS) == (seam.kind == "cpu")
    assert all(len(text) > 2 for text in (seam.why, seam.until)), "by class or function, which the next release keeps"
    assert not re.search(r"\.py\b", f"{seam.why} {seam.until}")
    assert bool(seam.condition) or seam.kind != "option"


def test_one_kind_of_rows_can_be_taken_alone(monkeypatch):
    monkeypatch.setenv(REPLACEMENTS, "estimator")
    assert {seam.kind for seam in all_seams()} - {"cpu"} == {"estimator"} and len(all_seams()) < len(SEAMS) / 2
    assert REPLACEMENTS in cluster.runtime_env()["env_vars"], "Ray's workers take the same"
    monkeypatch.setenv(REPLACEMENTS, "estimators")
    with pytest.raises(SeamError, match=f"{REPLACEMENTS} names estimators; kinds are estimator, safety"):
        all_seams()


@ROWS
def test_the_name_is_replaced_and_says_by_which_row(seam):
    found = target(seam)
    assert seam.replacement in found._ebpo_seams
    found = getattr(found, "actor_class", found)  # of OnThisNode
    module, _, name = seam.replacement.partition(":")
    replacement = getattr(importlib.import_module(module), name)
    assert callable(replacement)
    if inspect.isclass(replacement):
        metadata = getattr(found, "__ray_metadata__", None)
        classes = metadata.modified_class.__mro__ if metadata else found.__mro__
        assert replacement in classes
        assert any(base.__module__ == seam.module and base.__name__ == seam.name for base in classes)


@ROWS
def test_applying_a_row_twice_is_applying_it_once(seam):
    before = target(seam)
    apply(seam, importlib.import_module(seam.module))
    assert target(seam) is before


def engine_config(model):
    """Of an engine as upstream's rollout actor makes it: (scheduler's configuration, whether it keeps statistics)."""
    import vllm
    from vllm.usage.usage_lib import UsageContext

    arguments = vllm.AsyncEngineArgs(str(model), max_model_len=64)
    config = arguments.create_engine_config(UsageContext.ENGINE_CONTEXT).scheduler_config
    return config, not arguments.disable_log_stats


def test_engines_run_as_many_sequences_as_vllms_offline_engine(tmp_path):
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    tiny_model.build(tmp_path, ["abc"])
    offline = EngineArgs(str(tmp_path), max_model_len=64).create_engine_config(UsageContext.LLM_CLASS).scheduler_config
    found, _ = engine_config(tmp_path)
    sizes = found.max_num_seqs, found.max_num_batched_tokens
    assert sizes == (offline.max_num_seqs, offline.max_num_batched_tokens)
    assert sizes > (128, 2048), "vLLM's fallback, that upstream leaves its engines with"


@pytest.mark.parametrize(("level", "kept"), [(logging.INFO, True), (logging.ERROR, False)])
def test_engines_keep_statistics_that_their_log_shows(tmp_path, monkeypatch, level, kept):
    monkeypatch.setattr(logging.getLogger("vllm"), "level", level)
    logging.getLogger("vllm").manager._clear_cache()
    tiny_model.build(tmp_path, ["abc"])
    assert engine_config(tmp_path)[1] is kept


FORKS = """
import os, sys, ray, torch, transformers
for code in sys.argv[1:]:
    if os.fork() == 0:
        exec(code)
        os._exit(0)
    assert os.wait()[1] == 0
"""
WITHOUT = """
import openrlhf_ebpo.upstream.install, openrlhf_ebpo.upstream.cpu.device
import openrlhf_ebpo.upstream.rollout.guarded_rewards
import openrlhf_ebpo.upstream.controller.experience_maker, openrlhf_ebpo.upstream.policy.checkpoint
import openrlhf_ebpo.upstream.policy.policy_metrics
from openrlhf.utils import agent, loss_utils
for found in (agent.SingleTurnAgentExecutor, loss_utils._optimizer_step_loss_norm,
              torch.cuda.current_device, torch.cuda.synchronize):
    assert not hasattr(found, '_ebpo_seams'), found
assert agent.SingleTurnAgentExecutor.__bases__ == (agent.AgentExecutorBase,)
assert 'Guard' not in agent.SingleTurnAgentExecutor.__name__
assert not any('openrlhf_ebpo' in type(finder).__module__ for finder in sys.meta_path)
"""
INSTALLS = """
import importlib
from openrlhf_ebpo.upstream.install import all_seams, install
from openrlhf_ebpo.upstream.stack import is_cpu_stack
install()
names = {seam.replacement.partition(":")[0] for seam in all_seams() if seam.name == "RolloutRayActor"}
assert names
for name in sorted(names):
    importlib.import_module(name)
assert 'openrlhf.trainer.ray.vllm_engine' not in sys.modules
import openrlhf.trainer.ray.vllm_engine
from openrlhf.utils import agent
guarded = 'openrlhf_ebpo.upstream.rollout.guarded_rewards:GuardedSingleTurnExecutor'
assert agent.SingleTurnAgentExecutor._ebpo_seams == (guarded,)
assert ('torch._inductor.lowering' in sys.modules) is not is_cpu_stack()
"""


def test_a_process_that_installs_has_the_replacements_and_another_nothing_of_them():
    """Ray's workers unpickle the actor's class, which imports the mixins before upstream's module; one that imported
    that module would need itself. Then upstream's is imported, and replaced, without torch's compiler."""
    words = [sys.executable, "-W", "ignore", "-c", FORKS, WITHOUT, INSTALLS]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_rows_with_one_target_are_applied_on_top_of_each_other():
    by_target = {}
    for seam in all_seams():
        by_target.setdefault(str(seam), []).append(seam)
    for rows in by_target.values():
        assert target(rows[0])._ebpo_seams == tuple(seam.replacement for seam in rows)


def test_a_label_names_the_target_and_what_is_put_there():
    assert ROW.label == "openrlhf.trainer.ppo_utils.experience_maker.RemoteExperienceMaker: EBPOExperienceMaker"
    labels = [seam.label for seam in all_seams()]
    assert len(set(labels)) == len(labels)


def test_installing_again_changes_nothing():
    before = [target(seam) for seam in all_seams()]
    install()
    assert [target(seam) for seam in all_seams()] == before


def test_names_that_upstream_imported_from_a_replaced_module_are_the_replacements():
    """`from module import name` elsewhere in upstream happened after the row was applied."""
    from openrlhf.trainer import ppo_trainer, ppo_trainer_async
    from openrlhf.trainer.ppo_utils import experience_maker, samples_generator

    for user in (ppo_trainer, ppo_trainer_async):
        for name, owner in (("RemoteExperienceMaker", experience_maker), ("SamplesGenerator", samples_generator)):
            if hasattr(user, name):
                assert getattr(user, name) is getattr(owner, name)
    assert ppo_trainer.RemoteExperienceMaker is experience_maker.RemoteExperienceMaker


ROW = SEAMS[0]
FINGERPRINT = source_fingerprint(ROW.module, ROW.name)
UNKNOWN = "0" * 12
MADE_UP = Seam("made_up", "answer", "openrlhf_ebpo.upstream.cpu.device:do_nothing", "every", "cpu", "a test", "now")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({}, f"has changed (fingerprint {FINGERPRINT}, known: {UNKNOWN})"),
        ({"name": "NoSuchMaker"}, "is gone"),
        ({"name": "RemoteExperienceMaker.no_such_method"}, "is gone"),
        ({"module": "openrlhf.trainer.no_such_module"}, "is gone"),
    ],
    ids=str,
)
def test_a_target_that_differs_is_an_error_that_names_the_row(monkeypatch, change, shown):
    row = dataclasses.replace(ROW, **change)
    monkeypatch.setitem(releases.SOURCES, str(row), (UNKNOWN,))
    with pytest.raises(SeamError) as error:
        check_unchanged((*SEAMS[1:], row))
    for part in (f"seam {row}", shown, row.replacement, row.why, f"openrlhf=={releases.RECOMMENDED}"):
        assert part in str(error.value)
    assert f"1 of {len(SEAMS)} rows do not fit" in str(error.value)


def test_all_rows_that_do_not_fit_are_named(monkeypatch):
    changed = [seam for seam in SEAMS if seam.name in ("PPOTrainer", "SamplesGenerator")]
    for seam in changed:
        monkeypatch.setitem(releases.SOURCES, str(seam), (UNKNOWN,))
    with pytest.raises(SeamError) as error:
        check_unchanged(SEAMS)
    assert [line.split(":")[0] for line in str(error.value).splitlines()[1:]] == [f"seam {seam}" for seam in changed]


def test_each_of_several_known_sources_fits(monkeypatch):
    monkeypatch.setitem(releases.SOURCES, str(ROW), (UNKNOWN, FINGERPRINT))
    check_unchanged((ROW,))
    monkeypatch.setitem(releases.SOURCES, str(ROW), (FINGERPRINT, UNKNOWN))
    check_unchanged((ROW,))


@pytest.mark.parametrize("name", ["missing", "Missing.method", "Present.missing"])
def test_applying_a_row_without_a_target_is_an_error_that_names_the_row(name):
    module = types.ModuleType("made_up")
    module.Present = type("Present", (), {})
    row = dataclasses.replace(MADE_UP, name=name)
    with pytest.raises(SeamError, match=rf"seam made_up\.{name}: no such target"):
        apply(row, module)


def test_a_made_up_row_wraps_a_function_once():
    module = types.ModuleType("made_up")
    module.answer = lambda: 42
    apply(MADE_UP, module)
    apply(MADE_UP, module)
    assert module.answer() is None
    assert not hasattr(module.answer.__wrapped__, "_ebpo_seams")


@pytest.mark.parametrize("release", releases.TESTED)
def test_a_tested_release_is_taken_without_a_word(monkeypatch, capsys, release):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: release)
    check_release(SEAMS)
    assert capsys.readouterr() == ("", "")


def test_an_unknown_release_that_fits_is_taken_with_one_line_of_warning(monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.99.0")
    check_release(SEAMS)
    out, warning = capsys.readouterr()
    assert out == "" and warning.count("\n") == 1
    assert warning.startswith("warning: OpenRLHF 0.99.0 is installed") and ", ".join(releases.TESTED) in warning


def test_a_changed_source_of_another_package_is_one_line_of_warning(monkeypatch, capsys):
    """OpenRLHF pins their versions, and a machine may have others: what is gone stops the process that needs it."""
    (row,) = [seam for seam in SEAMS if seam.name == "EngineArgs.create_engine_config"]
    found = source_fingerprint(row.module, row.name)
    monkeypatch.setitem(releases.SOURCES, str(row), (UNKNOWN,))
    check_release(SEAMS)
    out, warning = capsys.readouterr()
    assert out == "" and warning.count("\n") == 1
    assert warning.startswith(f"warning: seam {row}: ") and f"(fingerprint {found}, known: {UNKNOWN})" in warning


def test_an_unknown_release_that_does_not_fit_is_refused_in_every_process(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.99.0")
    monkeypatch.setitem(releases.SOURCES, str(ROW), (UNKNOWN,))
    for admit in (lambda: check_release(SEAMS), install.__wrapped__):  # a driver; a worker
        with pytest.raises(SeamError, match=rf"0\.99\.0[\s\S]*seam {ROW}: "):
            admit()


def test_a_worker_on_a_node_with_another_release_than_the_drivers_is_refused(monkeypatch):
    told = cluster.runtime_env()["env_vars"]
    assert told[check.DRIVERS_RELEASE] == check.installed_release()
    monkeypatch.setitem(os.environ, check.DRIVERS_RELEASE, told[check.DRIVERS_RELEASE])
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.10.0")
    with pytest.raises(SeamError, match=r"has OpenRLHF 0\.10\.0, and the driver's node 0\."):
        install.__wrapped__()


def test_a_worker_on_a_node_with_another_version_of_this_package_is_refused(monkeypatch):
    told = cluster.runtime_env()["env_vars"]
    monkeypatch.setitem(os.environ, check.DRIVERS_VERSION, told[check.DRIVERS_VERSION])
    check.check_same_as_drivers()
    monkeypatch.setattr(check, "__version__", "0.0.1")
    with pytest.raises(SeamError, match=r"0\.0\.1.*driver"):
        check.check_same_as_drivers()


def test_no_openrlhf_at_all_is_said_in_words(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(SeamError, match="OpenRLHF"):
        check_release(SEAMS)


@pytest.mark.skipif(flash_attn.is_installed(), reason="flash-attn is installed")
def test_the_stand_in_for_flash_attn_shows_itself_to_upstream_alone():
    from openrlhf.models import ring_attn_utils

    assert ring_attn_utils.unpad_input.__module__ == "transformers.modeling_flash_attention_utils"
    assert importlib.util.find_spec("flash_attn") is None
    assert not [name for name in sys.modules if name.split(".")[0] == "flash_attn"]


@pytest.mark.parametrize("dtype", [torch.long, torch.bool])
def test_what_upstream_packs_comes_back_padded_with_the_gradients_of_the_tokens_that_count(dtype):
    from openrlhf.models import ring_attn_utils

    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]])
    tokens = torch.arange(1, 13).reshape(3, 4)
    packed, positions, rolled, _, indices = ring_attn_utils.unpad_and_slice_tensor(tokens, mask.to(dtype), None)
    assert packed.tolist() == [tokens[mask.bool()].tolist()] and indices.tolist() == [0, 1, 4, 5, 6, 7, 9, 10]
    assert rolled.tolist() == [tokens.roll(-1, 1)[mask.bool()].tolist()] and positions.shape == packed.shape
    values = packed.float().requires_grad_()
    padded = ring_attn_utils.gather_and_pad_tensor(values, None, 0, indices, 3, 4)
    assert torch.equal(padded, (tokens * mask).float())
    (padded * torch.arange(12.0).reshape(3, 4)).sum().backward()
    assert values.grad.tolist() == [torch.arange(12.0).reshape(3, 4)[mask.bool()].tolist()]


def test_the_document_has_the_head_checks_own_tolerance():
    page = " ".join((ROOT / "docs" / "start.md").read_text().split())
    assert f"more than {gloo_sync.HEAD_TOLERANCE * 100:g} %" in page


@pytest.mark.skipif(flash_attn.is_installed(), reason="flash-attn is installed")
def test_offering_the_stand_in_twice_adds_one_finder():
    flash_attn.offer_stand_in()
    assert sum(isinstance(finder, flash_attn.FlashAttnStandIn) for finder in sys.meta_path) == 1


def test_the_state_of_every_row_can_be_printed(capsys, monkeypatch):
    printer.main([])
    lines = [line for line in capsys.readouterr().out.splitlines()[1:] if not line.startswith(printer.INDENT)]
    assert len(lines) == len(all_seams())
    assert all(line.startswith(("ok ", "by name ")) for line in lines), lines
    gone = dataclasses.replace(ROW, name="NoSuchClass")
    monkeypatch.setattr(printer, "all_seams", lambda: (ROW, gone))
    for row in (ROW, gone):
        monkeypatch.setitem(releases.SOURCES, str(row), (UNKNOWN,))
    with pytest.raises(SystemExit, match="2 of 2 rows do not fit"):
        printer.main([])
    text = capsys.readouterr().out
    assert f"CHANGED  {ROW}  {FINGERPRINT} (known: {UNKNOWN})  controller  estimator\n" in text
    assert f"GONE     {gone}  - " in text
