"""Every row of SEAMS against the installed package: replaced; untouched when off; twice is once; a miss raises."""

import dataclasses
import importlib
import importlib.metadata
import importlib.util
import inspect
import subprocess
import sys
import types
from pathlib import Path

import pytest

from openrlhf_ebpo.engines import generation
from openrlhf_ebpo.errors import SeamError
from openrlhf_ebpo.quickstart import tiny_model
from openrlhf_ebpo.seams.check import check_sources, check_version, source_fingerprint
from openrlhf_ebpo.seams.cpu import rows as cpu_rows
from openrlhf_ebpo.seams.install import all_seams, apply, install
from openrlhf_ebpo.seams.rows import OFFLINE_SEAMS, SEAMS, Seam
from openrlhf_ebpo.seams.stack import is_cpu_stack

ROOT = Path(__file__).parents[2]
ROWS = pytest.mark.parametrize("seam", all_seams(), ids=str)
ALL_ROWS = pytest.mark.parametrize("seam", (*all_seams(), *OFFLINE_SEAMS), ids=str)


@pytest.mark.parametrize("name", sorted({str(s) for s in (*SEAMS, *cpu_rows.SEAMS, *OFFLINE_SEAMS)}))
def test_the_document_for_upgrades_has_a_line_for_every_row(name):
    lines = (ROOT / "docs" / "upgrading.md").read_text().splitlines()
    rows = [seam for seam in (*SEAMS, *cpu_rows.SEAMS, *OFFLINE_SEAMS) if str(seam) == name]
    assert sum(line.startswith(f"| `{name}` |") for line in lines) == len(rows)


def target(seam: Seam):
    found = importlib.import_module(seam.module)
    for part in seam.name.split("."):
        found = getattr(found, part)
    return found


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@ALL_ROWS
def test_the_source_is_the_one_that_the_row_was_written_for(seam):
    if seam.source is None:
        assert not seam.module.startswith("openrlhf.") or source_fingerprint(seam.module, seam.name) is None
    else:
        assert source_fingerprint(seam.module, seam.name) == seam.source
    check_sources((seam,))


@ALL_ROWS
def test_the_row_says_where_why_and_until_when(seam):
    assert all(len(text) > 2 for text in (seam.where, seam.why, seam.until))


@ALL_ROWS
def test_the_replacement_exists(seam):
    module, _, name = seam.replacement.partition(":")
    assert callable(getattr(importlib.import_module(module), name))


@ROWS
def test_the_name_is_replaced_and_says_by_which_row(seam):
    found = target(seam)
    assert seam.replacement in found._ebpo_seams
    module, _, name = seam.replacement.partition(":")
    replacement = getattr(importlib.import_module(module), name)
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


def test_engines_that_only_generate_run_as_many_sequences_as_vllms_offline_engine(tmp_path):
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    tiny_model.build(tmp_path, ["abc"])
    config = EngineArgs(str(tmp_path), max_model_len=64).create_engine_config(UsageContext.LLM_CLASS).scheduler_config
    found = generation.offline_arguments(1)
    assert found == {
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "disable_log_stats": True,
    }
    assert found["max_num_seqs"] > 128  # vLLM's fallback, that training is left with


def test_no_row_is_there_twice():
    rows = [(str(seam), seam.replacement) for seam in all_seams()]
    assert len(rows) == len(set(rows))


def test_rows_with_one_target_are_applied_on_top_of_each_other():
    by_target = {}
    for seam in all_seams():
        by_target.setdefault(str(seam), []).append(seam)
    for rows in by_target.values():
        assert target(rows[0])._ebpo_seams == tuple(seam.replacement for seam in rows)


def test_installing_again_changes_nothing():
    before = [target(seam) for seam in all_seams()]
    install()
    assert [target(seam) for seam in all_seams()] == before


def test_training_does_not_import_scikit_learn_nor_what_corrects_torchs_compiler():
    code = (
        "import sys\nfrom openrlhf_ebpo.seams.install import install\ninstall()\nimport openrlhf.trainer.ray.vllm_engine\n"
        "print([name for name in ('sklearn', 'torch._inductor.lowering') if name in sys.modules])"
    )
    assert importlib.util.find_spec("sklearn")
    assert python(code).splitlines()[-1] == str([] if is_cpu_stack() else ["torch._inductor.lowering"])


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


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"source": "0" * 12}, "has changed (fingerprint 351a52599ac6, expected 000000000000)"),
        ({"name": "NoSuchMaker"}, "is gone"),
        ({"name": "RemoteExperienceMaker.no_such_method"}, "is gone"),
        ({"module": "openrlhf.trainer.no_such_module"}, "is gone"),
    ],
    ids=str,
)
def test_a_target_that_differs_is_an_error_that_names_the_row(change, shown):
    row = dataclasses.replace(ROW, **change)
    with pytest.raises(SeamError) as error:
        check_sources((*SEAMS[1:], row))
    for part in (f"seam {row}", shown, row.replacement, row.why, "openrlhf==0.11.2"):
        assert part in str(error.value)


@pytest.mark.parametrize("name", ["missing", "Missing.method", "Present.missing"])
def test_applying_a_row_without_a_target_is_an_error_that_names_the_row(name):
    module = types.ModuleType("made_up")
    module.Present = type("Present", (), {})
    row = Seam("made_up", name, "openrlhf_ebpo.seams.cpu.device:nothing_to_do", "nowhere", "a test", "now")
    with pytest.raises(SeamError, match=rf"seam made_up\.{name}: no such target"):
        apply(row, module)


def test_a_made_up_row_wraps_a_function_once():
    module = types.ModuleType("made_up")
    module.answer = lambda: 42
    row = Seam("made_up", "answer", "openrlhf_ebpo.seams.cpu.device:nothing_to_do", "nowhere", "a test", "now")
    apply(row, module)
    apply(row, module)
    assert module.answer() is None
    assert not hasattr(module.answer.__wrapped__, "_ebpo_seams")


@pytest.mark.parametrize("version", ["0.11.1", "0.12.0"])
def test_another_version_of_openrlhf_is_refused(monkeypatch, version):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(SeamError, match=rf"OpenRLHF {version} is installed.*openrlhf==0\.11\.2"):
        check_version()
    monkeypatch.setattr(install, "done", False)
    with pytest.raises(SeamError):
        install()


def test_no_openrlhf_at_all_is_said_in_words(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(SeamError, match="OpenRLHF is not installed"):
        check_version()


def test_without_install_nothing_is_replaced():
    python(
        "import openrlhf_ebpo.seams.install, openrlhf_ebpo.seams.cpu.device, openrlhf_ebpo.rewards.guard\n"
        "import openrlhf_ebpo.training.experience_maker, openrlhf_ebpo.training.checkpoint, openrlhf_ebpo.training.policy_metrics\n"
        "import sys, torch\n"
        "from openrlhf.utils import agent, loss_utils\n"
        "for found in (agent.SingleTurnAgentExecutor, loss_utils._optimizer_step_loss_norm,\n"
        "              torch.cuda.current_device, torch.cuda.synchronize):\n"
        "    assert not hasattr(found, '_ebpo_seams'), found\n"
        "assert agent.SingleTurnAgentExecutor.__bases__ == (agent.AgentExecutorBase,)\n"
        "assert 'Guard' not in agent.SingleTurnAgentExecutor.__name__\n"
        "assert not any('openrlhf_ebpo' in type(finder).__module__ for finder in sys.meta_path)\n"
    )


def test_with_install_the_same_process_start_replaces_them():
    python(
        "from openrlhf_ebpo.seams.install import install\n"
        "install()\n"
        "from openrlhf.utils import agent\n"
        "assert agent.SingleTurnAgentExecutor._ebpo_seams == ('openrlhf_ebpo.rewards.guard:GuardedSingleTurnExecutor',)\n"
    )


def test_the_estimator_needs_neither_ray_nor_openrlhf_and_a_reader_of_runs_no_torch():
    python(
        "import sys\n"
        "import openrlhf_ebpo.estimator.shrinkage\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
        "import openrlhf_ebpo.record.run_log, openrlhf_ebpo.estimator.prior, openrlhf_ebpo.estimator.config\n"
        "assert not {'torch', 'ray', 'openrlhf'} & set(sys.modules)\n"
        "import openrlhf_ebpo.estimator.advantage, openrlhf_ebpo.training.rollouts, openrlhf_ebpo.training.checkpoint\n"
        "assert not {'ray', 'openrlhf', 'vllm', 'deepspeed'} & set(sys.modules)\n"
    )


@pytest.mark.skipif(not is_cpu_stack(), reason="needs a torch without CUDA")
def test_the_stand_in_for_flash_attn_shows_itself_to_upstream_alone():
    from openrlhf.models import ring_attn_utils

    from openrlhf_ebpo.seams.cpu import packing

    assert ring_attn_utils.unpad_input is packing.unpad_input
    assert ring_attn_utils.pad_input is packing.pad_input
    assert importlib.util.find_spec("flash_attn") is None
    assert not [name for name in sys.modules if name.split(".")[0] == "flash_attn"]


@pytest.mark.skipif(not is_cpu_stack(), reason="needs a torch without CUDA")
def test_preparing_a_process_twice_adds_one_finder():
    from openrlhf_ebpo.seams import cpu
    from openrlhf_ebpo.seams.cpu.packing import FlashAttnStandIn

    cpu.prepare_process()
    assert sum(isinstance(finder, FlashAttnStandIn) for finder in sys.meta_path) == 1


def test_the_state_of_every_row_can_be_printed(capsys, monkeypatch):
    from openrlhf_ebpo.seams import __main__ as printer

    printer.main([])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == len(all_seams()) + len(OFFLINE_SEAMS)
    assert all(line.startswith(("ok ", "by name ")) for line in lines), lines
    first = SEAMS[0]
    changed, gone = dataclasses.replace(first, source="0" * 12), dataclasses.replace(first, name="NoSuchClass")
    monkeypatch.setattr(printer, "all_seams", lambda: (changed, gone))
    with pytest.raises(SystemExit, match="2 of 3 rows do not fit"):
        printer.main([])
    text = capsys.readouterr().out
    assert f"CHANGED  {changed}: {first.source}, and the row has 000000000000" in text and f"GONE     {gone}" in text
