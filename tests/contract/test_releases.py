"""Every release of TESTED, as it was published: each row's source is a known one.

The packages come from the registry that pip is set to; where it cannot be reached, the tests skip, and fail if CI is
set. Nothing is installed: a release is a folder in front of the others on PYTHONPATH, where Ray's workers find it too.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from network import unreachable

from openrlhf_ebpo.upstream import releases
from openrlhf_ebpo.upstream.replacements import SEAMS

ROOT = Path(__file__).parents[2]
RELEASES = pytest.mark.parametrize("release", releases.TESTED)
FINGERPRINTS = """
import json
from openrlhf_ebpo.upstream import check, releases
from openrlhf_ebpo.upstream.cpu.cpu_replacements import SEAMS as CPU_SEAMS
from openrlhf_ebpo.upstream.replacements import SEAMS
rows = [seam for seam in (*SEAMS, *CPU_SEAMS) if seam.sources and seam.package == check.UPSTREAM]
print(json.dumps([check.installed_release(), {str(seam): check.source_fingerprint(seam.module,
seam.name) for seam in rows}]))
"""


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Release -> the folder with its package, downloaded once."""
    folder = tmp_path_factory.mktemp("published")

    def fetch(release: str) -> Path:
        place = folder / release
        if not place.exists():
            download(release, folder)
            (wheel,) = folder.glob(f"openrlhf-{release}-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place)
        (package,) = place.rglob("openrlhf/__init__.py")
        (info,) = place.glob("*.dist-info")
        if package.parent.parent != place:  # a wheel's folder of its own for pure Python; pip would move it
            package.parent.rename(place / "openrlhf")
        assert info.name.startswith(f"openrlhf-{release}.")
        return place

    return fetch


def download(release: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    # its wheels are pure Python, and tagged for 3.10 to 3.12
    flags = "--implementation cp --abi cp311 --python-version 3.11 --retries 1 --timeout 20"
    done = subprocess.run(
        [*command, *flags.split(), "--dest", str(folder), f"openrlhf=={release}"], capture_output=True, text=True
    )
    if done.returncode:
        unreachable(f"OpenRLHF {release} cannot be downloaded here: {done.stderr.strip().splitlines()[-1]}")


def run_with(place: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout


@RELEASES
def test_every_row_fits_the_published_release(published, release):
    printed = run_with(published(release), "-m", "openrlhf_ebpo.upstream").splitlines()
    lines = [line for line in printed if not line.startswith(" ")]
    assert lines[0] == f"OpenRLHF {release}; tested: {', '.join(releases.TESTED)}"
    assert len(lines) > len(SEAMS) and {line.split()[0] for line in lines[1:]} == {"ok", "by"}


def test_every_known_source_is_one_of_a_tested_release(published):
    """A source of a release that is no longer supported is removed."""
    known: dict[str, set[str]] = {}
    for release in releases.TESTED:
        found, fingerprints = json.loads(run_with(published(release), "-c", FINGERPRINTS))
        assert found == release
        for target, fingerprint in fingerprints.items():
            known.setdefault(target, set()).add(fingerprint)
    ours = {target: {*sources} for target, sources in releases.SOURCES.items() if target.startswith("openrlhf.")}
    assert ours == known


def test_the_pins_are_those_of_the_recommended_release():
    recommended = releases.RECOMMENDED
    assert recommended in releases.TESTED
    for file in ("cpu.txt", "gpu-torch213.txt"):
        assert f"openrlhf=={recommended}" in (ROOT / "requirements" / file).read_text(), file


def test_the_way_to_install_it_with_a_gpu_is_said_once():
    """Messages have it from GPU_INSTALL; pages refer to docs/gpus.md, where it stands line by line."""
    assert f"openrlhf[vllm]=={releases.RECOMMENDED}" in releases.GPU_INSTALL
    pages = {path.name: path.read_text() for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))}
    commands = [line.strip() for line in releases.GPU_INSTALL.splitlines() if " pip " in f" {line}"]
    assert len(commands) == 4
    for command in commands:
        assert [name for name, text in pages.items() if command in text] == ["gpus.md"], command


def test_the_pins_for_a_gpu_are_those_that_openrlhf_and_vllm_ask_for():
    pins = (ROOT / "requirements" / "gpu-torch213.txt").read_text().splitlines()
    assert {"vllm==0.29.0", "torch==2.13.0", "transformers==5.15.0", "ray==2.55.0", "deepspeed==0.19.6"} <= set(pins)
    assert not [pin for pin in pins if pin.startswith("flash-attn")]
