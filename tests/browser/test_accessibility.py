"""axe-core, from npm, finds nothing on any page, light or dark."""

import shutil
import subprocess

import pytest
from network import unreachable

VERSION = "4.10.3"
READY = {
    "overview": ".run-card",
    "dynamics": ".panel[data-drawn]",
    "samples": ".answer",
    "evaluation": "table.scores",
    "configuration": "table.settings",
    "understand": ".story",
}


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    if shutil.which("npm") is None:
        unreachable("npm is not installed")
    folder = tmp_path_factory.mktemp("npm")
    command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", f"axe-core@{VERSION}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        unreachable(f"axe-core cannot be installed from npm: {done.stderr.strip()[-200:]}")
    return folder / "node_modules" / "axe-core" / "axe.min.js"


@pytest.mark.nightly  # contrast and names of all elements are seen here alone; daily: unit/test_space_pages.py
def test_axe_finds_nothing_on_any_page_light_or_dark(visit, axe):
    page = visit("?runs=ebpo,grpo,troubled")
    said = []
    for tab, ready in READY.items():
        page.get_by_role("tab", name=tab.capitalize()).click()
        page.wait_for_selector(f"{ready}:visible")
        page.evaluate(f"() => {{ {axe.read_text()} }}")  # no script of the page: those need its nonce
        for scheme, options in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
            page.evaluate("dark => document.body.classList.toggle('dark', dark)", scheme == "dark")
            page.wait_for_function(
                "() => document.getAnimations().every(a => a.playState !== 'running' || "
                "a.effect.getTiming().iterations > 1)"
            )
            rules = {"label-content-name-mismatch": {"enabled": True}} if scheme == "light" else {}
            found = page.evaluate(
                "options => axe.run({resultTypes: ['violations'], preload: false, ...options})",
                {**options, "rules": rules},
            )["violations"]
            said += [f"{tab}, {scheme}: {describe(violation)}" for violation in found]
    assert not said, "\n".join(said)


def test_no_choice_of_dynamics_is_cut_at_200_percent(visit):
    page = visit("?tab=dynamics&runs=ebpo,grpo")
    page.set_viewport_size({"width": 720, "height": 450})
    try:
        page.wait_for_selector(".panel[data-drawn]:visible")
        ends = page.evaluate(
            "() => [...document.querySelectorAll('.choices button')].filter(b => b.offsetParent)"
            ".map(b => b.getBoundingClientRect().right)"
        )
        assert ends and max(ends) <= 720
    finally:
        page.set_viewport_size({"width": 1440, "height": 900})


def describe(violation: dict) -> str:
    first = violation["nodes"][0]
    return (
        f"{violation['id']} ({violation['impact']}) {len(violation['nodes'])} times, first {first['target']} "
        f"{first['html'][:120]} {first['failureSummary'][:300]}"
    )
