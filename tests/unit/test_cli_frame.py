"""The command line's frame: cheap help, one-line errors, exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from atb_dist import cli
from atb_dist.errors import AtbDistError, ConfigError, PeerFailure


def test_help_imports_neither_torch_nor_numpy() -> None:
    code = (
        "import sys; from atb_dist.cli import build_parser; build_parser().format_help();"
        "print([m for m in ('torch', 'numpy', 'transformers', 'tqdm') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "[]", run.stderr


def test_every_subcommand_is_described() -> None:
    commands = cli.subcommands()
    assert {"bench", "chat", "generate", "info", "launch", "plan"} <= set(commands)
    assert all(module.HELP and "\n" not in module.HELP for module in commands.values())


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "COMMAND"),
        (["bogus"], "invalid choice: 'bogus'"),
        (["bench", "decode", "--tp", "x"], "invalid int value: 'x'"),
        (["bench", "decode", "--tp", "0"], "--tp 0 is out of range"),
        (["bench", "decode", "--random", "9T", "--no-peer"], "--random 9T is unknown"),
        (["bench", "decode", "--bogus"], "--bogus"),
    ],
)
def test_a_wrong_flag_costs_one_line(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    output = capsys.readouterr()
    assert told in output.err
    assert output.err.count("\n") == 1
    assert not output.out


@pytest.mark.parametrize(
    ("error", "code"),
    [(ConfigError("no\nsuch"), 2), (AtbDistError("broke"), 1), (PeerFailure("rank 1 died"), 1)],
)
def test_errors_of_a_command_become_one_line_and_a_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_args: object) -> int:
        raise error

    monkeypatch.setattr("atb_dist.cli.info.run", fail)
    assert cli.main(["info"]) == code
    assert capsys.readouterr().err == f"atb-dist: error: {' '.join(str(error).split())}\n"
