"""Upstream's command lines, run from its own source, with the arguments that this machine needs.

Upstream's train_*.py build their parser, validate and train under `if __name__ == "__main__"`, behind 10 s of
imports. The block is cut, unchanged, at `args = parser.parse_args()` and at `train(args)`: the first part gives
the parser at once, the second is upstream's own validation.
"""

from __future__ import annotations

import argparse
import ast
import importlib
from datetime import datetime
from types import SimpleNamespace

from openrlhf_ebpo.errors import SeamError, UsageError
from openrlhf_ebpo.upstream import flash_attn
from openrlhf_ebpo.upstream.stack import is_cpu_stack, module_path


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Texts keep the line breaks that they have, so that an example can be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        return "\n".join(line if line.startswith("  ") else fill(line, width, indent) for line in text.splitlines())

    def _get_help_string(self, action: argparse.Action) -> str | None:
        """Add the default, unless it is None or False, or the text names it."""
        is_named = action.default is None or action.default is False or "default" in (action.help or "").lower()
        return action.help if is_named else super()._get_help_string(action)


class UpstreamMain:
    """The `__main__` block of one upstream module in three parts: parser, validation, train.

    Raises:
        SeamError: the block does not have the shape that it is cut by.
    """

    def __init__(self, module: str):
        self.module = module
        path = module_path(module)
        body = _main_block(ast.parse(path.read_text()), module)
        parse = _find(body, "args = parser.parse_args()", module)
        train = _find(body, "train(args)", module)
        self._build = compile(ast.Module(body[:parse], []), path, "exec")
        self._validate = compile(ast.Module(body[parse + 1 : train], []), path, "exec")

    def parser(self, prog: str) -> argparse.ArgumentParser:
        """Upstream's own parser, without importing upstream."""
        names = {"argparse": argparse, "datetime": datetime}
        exec(self._build, names)
        parser = names["parser"]
        parser.prog = prog
        parser.usage = f"{prog} [flags]   (--help explains them)"  # all of them are 170 lines, before every error
        parser.formatter_class = HelpFormatter
        return parser

    def validate(self, args: SimpleNamespace) -> SimpleNamespace:
        """Upstream's own validation of nested arguments; returns those that `train` takes. Imports transformers.

        Raises:
            UsageError: an assertion of upstream's failed.
        """
        names = {"args": args}
        try:
            exec(self._validate, names)
        except AssertionError as error:
            raise UsageError(f"OpenRLHF refuses this combination of flags: {error}") from None
        except (AttributeError, TypeError) as error:
            raise UsageError(f"OpenRLHF's validation fails ({error}): is a required flag missing?") from error
        return names["args"]

    def train(self, args) -> None:
        importlib.import_module(self.module).train(args)


def adapt_args(args) -> list[str]:
    """Change, in place, what this machine cannot do as requested; returns the changes. args: upstream's, of `train` or
    `sft`.

    Raises:
        UsageError: this machine cannot do what is requested.
    """
    changes = []
    if is_cpu_stack():
        from openrlhf_ebpo.upstream import cpu

        cpu.prepare_driver()
        changes = [f"no CUDA: {change}" for change in cpu.adapt_args(args)]
    return changes + flash_attn.adapt_args(args)


def _main_block(tree: ast.Module, module: str) -> list[ast.stmt]:
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            return node.body
    raise SeamError(f"{module} has no `if __name__ == '__main__'` block; the command line is read from it")


def _find(body: list[ast.stmt], statement: str, module: str) -> int:
    for i, node in enumerate(body):
        if ast.unparse(node) == statement:
            return i
    raise SeamError(f"{module}: no line `{statement}` in its __main__ block; the command line is cut there")
