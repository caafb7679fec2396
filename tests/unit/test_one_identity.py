"""eval/ and space/ lie next to the package, and are loaded once, under one name, however a command is started."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
AS_MAIN = """
import contextlib, io, runpy, sys
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    {start}
paths = [module.__file__ for name, module in sys.modules.items()
         if name.startswith(("eval.", "openrlhf_ebpo.eval.", "ebpo_space",
         "openrlhf_ebpo.space")) and name != "__main__"]
print(sorted(name for name in sys.modules if name.split(".")[0] in ("eval", "ebpo_space")),
len(paths) - len(set(paths)), len(paths))
"""


def loaded(start: str) -> list[str]:
    """Modules under a name of the checkout; files that were loaded twice; files that were loaded at all."""
    done = subprocess.run(
        [sys.executable, "-c", AS_MAIN.format(start=start)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().rsplit(" ", 2)


def test_the_commands_of_a_checkout_end_in_the_installed_modules():
    start = (
        "    with contextlib.suppress(SystemExit):\n        runpy.run_module('eval.{}', run_name='__main__', "
        "alter_sys=True)"
    )
    starts = ["sys.argv = ['x', '--help']", *map(start.format, ("run", "evaluation_report", "score"))]
    # python -m eval.run and a library user meet in the same classes
    starts.append("    from openrlhf_ebpo.eval import jobs, run")
    starts.append("    same = runpy.run_module('eval.run', run_name='not_main')['Job'] is jobs.Job")
    starts.append("    assert same and jobs.Job is run.Job")
    top, twice, all_files = loaded("\n".join(starts))
    assert top == "['eval']"  # the package of `python -m eval.run` itself, which holds nothing but a docstring
    assert twice == "0" and int(all_files) > 5


def test_the_apps_script_ends_in_the_installed_modules():
    top, twice, all_files = loaded("sys.argv = ['x', '--help']; runpy.run_path('space/app.py', run_name='__main__')")
    assert (top, twice) == ("[]", "0") and int(all_files) >= 2


def test_no_library_edits_the_search_path():
    """A script may, and so may the process of a reward function; who imports one must not find other
    modules afterwards. What a user brings along is looked for in the current folder too, last (extension.py)."""
    found = [
        str(path.relative_to(ROOT))
        for folder in ("openrlhf_ebpo", "eval", "space")
        for path in ROOT.joinpath(folder).rglob("*.py")
        if re.search(r"sys\.path(\[.*\])?( =|\.(insert|append|extend))", path.read_text())
    ]
    assert set(found) - {"openrlhf_ebpo/rewards/processes/sources.py"} == {"openrlhf_ebpo/extension.py"}


def test_the_app_runs_beside_the_package_alone(tmp_path):
    """As on the Hub: app.py, and openrlhf_ebpo with the app's modules in it; nothing of a checkout."""
    shutil.copy(ROOT / "space" / "app.py", tmp_path)
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "openrlhf_ebpo", tmp_path / "openrlhf_ebpo", ignore=ignore)
    shutil.copytree(ROOT / "eval", tmp_path / "openrlhf_ebpo" / "eval", ignore=ignore)
    shutil.copytree(ROOT / "space" / "ebpo_space", tmp_path / "openrlhf_ebpo" / "space", ignore=ignore)
    done = subprocess.run(
        [sys.executable, "-S", "app.py", "--help"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "EBPO_SPACE_RUNS" in done.stdout, done.stderr
