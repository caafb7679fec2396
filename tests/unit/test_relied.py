"""What is called in vLLM and transformers is there, and takes what it is given; what is not is named."""

from __future__ import annotations

import textwrap

import pytest

from openrlhf_ebpo.seams import __main__ as printer
from openrlhf_ebpo.seams.relied import RELIED, Relied, problem

PACKAGE = {
    "__init__.py": """
        import typing
        TABLE = {"late": ".engine:Engine"}
        if typing.TYPE_CHECKING:
            from made_up_engine.engine import Arguments as Settings
        else:
            def __getattr__(name): ...
    """,
    "engine/__init__.py": """
        from .arguments import Arguments
        from ..outputs import anything
        Engine = object
    """,
    "engine/arguments.py": """
        class Base:
            model: str
            @classmethod
            def defaults(cls, world_size: int) -> int: ...
        class Arguments(Base):
            seed: int = 0
        class Made:
            def __init__(self, group, *, device=None): ...
    """,
    "outputs.py": "def anything(first, **rest): ...",
}


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    for name, text in PACKAGE.items():
        file = folder / "made_up_engine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


@pytest.mark.parametrize("call", RELIED, ids=str)
def test_what_is_called_is_there_and_takes_what_it_is_given(call):
    assert problem(call) is None


@pytest.mark.parametrize(
    ("module", "name", "takes", "found"),
    [
        ("", "Settings", ("model", "seed"), None),
        ("", "Settings.defaults", ("world_size",), None),
        ("", "Settings", ("model", "device", "rank"), "takes no device, rank"),
        ("", "Settings.defaults", ("world", "world_size"), "takes no world"),
        ("", "Settings.no_such", (), "is gone"),
        ("", "NoSuch", (), "is gone"),
        (".engine", "Engine", (), None),
        (".engine", "anything", ("whatever",), None),
        (".engine", "NoSuch.member", (), "is gone"),
        (".engine.arguments", "Made", ("group", "device"), None),
        (".engine.arguments", "Made", ("rank",), "takes no rank"),
        (".no_such_module", "Made", (), "is gone"),
    ],
)
def test_a_name_is_followed_to_where_it_is_defined(module, name, takes, found):
    assert problem(Relied(f"made_up_engine{module}", name, takes)) == found


def test_a_package_that_is_not_installed_is_gone():
    assert problem(Relied("made_up_and_absent", "Name")) == "is gone"
    assert problem(Relied("made_up_and_absent.module", "Name")) == "is gone"


def test_the_command_names_what_does_not_fit(monkeypatch, capsys):
    wrong = Relied("made_up_engine", "Settings", ("device",))
    monkeypatch.setattr(printer, "RELIED", (*RELIED, wrong))
    with pytest.raises(SystemExit, match=r"1 of \d+ rows and calls do not fit what is installed"):
        printer.main([])
    assert "CHANGED  calls made_up_engine.Settings: it takes no device" in capsys.readouterr().out
