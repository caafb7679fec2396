"""What an installation holds."""

from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[2]


def test_every_package_is_installed_and_eval_below_ours():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    found = {".".join(path.parent.relative_to(ROOT).parts) for path in ROOT.glob("openrlhf_ebpo/**/__init__.py")}
    found |= {
        ".".join(["openrlhf_ebpo", *path.parent.relative_to(ROOT).parts]) for path in ROOT.glob("eval/**/__init__.py")
    }
    assert set(settings["packages"]) == found
    assert settings["package-dir"] == {"openrlhf_ebpo.eval": "eval"}
