"""A manifest says what a complete checkpoint is, and finds every kind of damage."""

import json
import os
import zlib

import pytest

from openrlhf_ebpo.files import write_json
from openrlhf_ebpo.run import manifest
from openrlhf_ebpo.run.manifest import MANIFEST, attempt_of, begin, complete, damage, is_unfinished, list_files, read

SHARDS = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "_actor" / "global_step6"
    begin(folder)
    for i, name in enumerate(SHARDS):
        (folder / name).write_bytes(bytes([i]) * 100_000)
    (folder / "zero_to_fp32.py").write_text("")
    complete(folder, prior={"a": 1, "b": 2}, attempt="x", settings={"train.seed": 1})
    return folder


def rewrite(checkpoint, **changes):
    path = checkpoint / MANIFEST
    write_json(path, {**json.loads(path.read_text()), **changes})


def test_it_lists_what_is_loaded_with_sizes_and_checksums(checkpoint):
    found = json.loads((checkpoint / MANIFEST).read_text())
    crc = f"{zlib.crc32(bytes(100_000)):08x}"
    assert found["files"][SHARDS[0]] == {"size": 100_000, "crc32": crc} and list(found["files"]) == list(SHARDS)
    assert (found["tag"], found["step"], found["complete"], found["schema"]) == ("global_step6", 6, True, 1)
    assert found["prior"] == manifest.state_hash({"b": 2, "a": 1}) != manifest.state_hash({"b": 2, "a": 2})
    assert damage(checkpoint, contents=True) is None and attempt_of(checkpoint) == "x"
    assert read(checkpoint).settings == {"train.seed": 1} and read(checkpoint.parent) is None


@pytest.mark.parametrize(
    ("tag", "step"),
    [
        ("global_step6", 6),
        ("best_global_step12", 12),
        *((other, None) for other in ("global_step6_hf", "old_global_step6", "global_step", "global_step6\n", "step6")),
    ],
)
def test_a_tag_is_a_complete_name(tag, step):
    assert manifest.step_of(tag) == step


def zero(path):
    path.write_bytes(bytes(path.stat().st_size // 2) + path.read_bytes()[path.stat().st_size // 2 :])
    os.utime(path, ns=(2, 2))


def flip(path):
    content = bytearray(path.read_bytes())
    content[70_000] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))  # the clock of files is coarse


SIZES = {
    "lost": (lambda path: path.unlink(), "is missing"),
    "halved": (lambda path: os.truncate(path, 50_000), "has 50000 bytes, and 100000 were saved"),
    "emptied": (lambda path: os.truncate(path, 0), "has 0 bytes"),
    "lengthened": (lambda path: path.write_bytes(path.read_bytes() + b"x"), "has 100001 bytes"),
    "a folder": (lambda path: (path.unlink(), path.mkdir()), "is not a file"),
}


@pytest.mark.parametrize(("harm", "said"), SIZES.values(), ids=SIZES)
def test_what_sizes_tell_is_always_found(checkpoint, harm, said):
    harm(checkpoint / SHARDS[1])
    assert damage(checkpoint) == damage(checkpoint, contents=True) and damage(checkpoint).startswith(SHARDS[1])
    assert said in damage(checkpoint) and not is_unfinished(checkpoint)


@pytest.mark.parametrize("harm", [zero, flip])
def test_a_flipped_byte_is_found_where_contents_are_compared(checkpoint, harm):
    harm(checkpoint / SHARDS[1])
    assert damage(checkpoint) is None
    assert "its checksum differs" in damage(checkpoint, contents=True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "damaged"),
        ("[1]", "damaged"),
        ('{"schema": 1, "complete": true, "tag": "global_st', "damaged"),
        ("\0" * 400, "damaged"),
        ("[" * 10**5, "damaged"),
        (
            '{"schema": 1, "complete": true, "tag": "global_step6", "files": {"a": {"size": ' + "9" * 5000 + "}}}",
            "damaged",
        ),
        ('{"schema": 2}', "schema 2"),
        ('{"complete": "false", "schema": 1}', "and not true or false"),
    ],
)
def test_a_manifest_that_is_cut_or_nonsense_is_damage_and_no_interrupted_save(checkpoint, text, said):
    (checkpoint / MANIFEST).write_text(text)
    assert f"its {MANIFEST} is" in damage(checkpoint) and said in damage(checkpoint) and not is_unfinished(checkpoint)
    (checkpoint / MANIFEST).write_bytes(b"\xff")
    assert "damaged" in damage(checkpoint)


def test_the_manifest_of_another_step_does_not_count(checkpoint):
    other = checkpoint.with_name("global_step8")
    checkpoint.rename(other)
    assert "global_step6" in damage(other)


SIZE = {"size": 1, "crc32": "00000000"}


@pytest.mark.parametrize(
    "files",
    [
        {},
        [],
        None,
        {"../../x": SIZE},
        {"a/../../x": SIZE},
        {"/etc/passwd": SIZE},
        {"./x": SIZE},
        {"a//b": SIZE},
        {"": SIZE},
        {".": SIZE},
        {"\0": SIZE},
        {"\x1b[31m": SIZE},
        {"a": 1},
        {"a": {"size": True}},
        {"a": {"size": -1}},
        {"a": {"size": 1e300}},
        {"a": {"size": "\x1b" * 999}},
        {"a": {"size": 1}},
        {"a": {"size": 1, "crc32": None}},
        {"a": {"size": 1, "crc32": 7}},
        {"a": {"size": 1, "crc32": "nonsense"}},
    ],
)
def test_hostile_lists_are_damage_in_few_words(checkpoint, files):
    rewrite(checkpoint, files=files)
    said = damage(checkpoint, contents=True)
    assert f"its {MANIFEST} is damaged" in said and "\x1b" not in said and len(said) < 500


def test_huge_numbers_are_a_wrong_size(checkpoint):
    rewrite(checkpoint, files={SHARDS[0]: {**SIZE, "size": 10**300}})
    assert "and 1000" in damage(checkpoint) and len(damage(checkpoint)) < 300


def test_a_shard_without_a_checksum_does_not_count(checkpoint):
    """As where a line of the manifest is lost: what DeepSpeed loads is compared, or not loaded."""
    listed = json.loads((checkpoint / MANIFEST).read_text())["files"]
    rewrite(checkpoint, files={SHARDS[0]: listed[SHARDS[0]]})
    assert damage(checkpoint) == f"{SHARDS[1]} is not listed in its {MANIFEST}: its checksum is not known"
    rewrite(checkpoint, files={**listed, SHARDS[1]: {"size": 100_000}})
    assert f"it lacks the size or the checksum of {SHARDS[1]}" in damage(checkpoint)
    rewrite(checkpoint, files=listed)
    (checkpoint / ".nfs0001").write_bytes(b"x")  # of a network disk, and nothing that is loaded
    assert damage(checkpoint, contents=True) is None


def test_a_file_that_vanishes_while_it_is_looked_at_is_damage(checkpoint, monkeypatch):
    def vanish(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(manifest, "_crc32", vanish)
    assert damage(checkpoint, contents=True)


def test_while_it_is_saved_it_is_unfinished(tmp_path):
    begin(tmp_path / "global_step1")
    (tmp_path / "global_step1" / SHARDS[0]).write_bytes(b"x")
    assert is_unfinished(tmp_path / "global_step1") and damage(tmp_path / "global_step1")


def test_files_on_another_nodes_own_disk_are_listed_and_not_missed(tmp_path):
    """Several nodes without a shared disk: rank 0 sees its own files only."""
    folder = tmp_path / "global_step1"
    begin(folder)
    for name in SHARDS:
        (folder / name).write_bytes(b"x" * 10)
    files = list_files(folder, [folder / name for name in SHARDS])
    (folder / SHARDS[1]).unlink()
    complete(folder, files)
    assert json.loads((folder / MANIFEST).read_text())["files"][SHARDS[1]]["elsewhere"] is True
    assert damage(folder, contents=True) is None
    (folder / SHARDS[1]).write_bytes(b"y" * 10)  # it is here after all
    assert "its checksum differs" in damage(folder, contents=True)
    (folder / SHARDS[0]).unlink()
    assert f"{SHARDS[0]} is missing" == damage(folder)


def test_the_manifest_and_the_checkpoints_name_are_on_disk_when_complete_comes_back(tmp_path, monkeypatch):
    """An older checkpoint is deleted next."""
    checkpoint, order, rename = tmp_path / "global_step2", [], os.replace
    manifest.begin(checkpoint)
    (checkpoint / "a.pt").write_bytes(b"x")
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(os, "replace", lambda *names: order.append("renamed") or rename(*names))
    manifest.complete(checkpoint)
    assert order[order.index("renamed") + 1 :] == [str(checkpoint), str(tmp_path)]
