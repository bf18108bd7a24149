"""`atb-dist generate`: the same answer however it is started; one line for what is wrong."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ATB_DIST, BARD, LAUNCHERS, generate, run

from atb_dist import cli
from atb_dist.testing.checkpoints import tiny_checkpoint

PROMPTS = ["--prompt", "ROMEO.", "--prompt", "The king", "--max-tokens", "24"]


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return generate(*PROMPTS)


def test_json_has_the_documented_form(alone: dict[str, Any]) -> None:
    assert set(alone) == {"outputs", "timing", "tp", "backend"}
    assert set(alone["outputs"][0]) == {"prompt", "text", "token_ids", "finish_reason"}
    assert set(alone["timing"]) == {
        "load_s", "ttft_ms", "prefill_tokens_per_s", "decode_tokens_per_s", "compute_s", "comm_s",
        "exposed_comm_s",
    }  # fmt: skip
    assert [o["prompt"] for o in alone["outputs"]] == ["ROMEO.", "The king"]
    assert (alone["tp"], alone["backend"]) == (1, "local")


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("size", [2, 3])
def test_every_launcher_gives_the_same_outputs(
    launcher: str, size: int, alone: dict[str, Any]
) -> None:
    found = generate(*PROMPTS, prefix=LAUNCHERS[launcher](size))
    assert found["outputs"] == alone["outputs"]
    assert (found["tp"], found["backend"]) == (size, "lcal")


@pytest.mark.parametrize("backend", ["gloo", "lcal"])
def test_tp_in_a_plain_shell_starts_the_ranks(backend: str, alone: dict[str, Any]) -> None:
    found = generate(*PROMPTS, "--tp", "2", "--backend", backend)
    assert found["outputs"] == alone["outputs"]
    assert (found["tp"], found["backend"]) == (2, backend)


def test_ranks_of_two_nodes_share_memory_inside_each(alone: dict[str, Any]) -> None:
    """Two launchers on this host stand for two hosts: told apart, they talk over gloo."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    flags = ["generate", "--model", str(BARD), "--json", *PROMPTS]

    def node(number: int) -> list[str]:
        place = ["--nodes", "2", "--node-rank", str(number), "--rendezvous", f"127.0.0.1:{port}"]
        told = ["env", f"ATB_DIST_HOST=host{number}"]
        return [*told, *ATB_DIST, "launch", "--quiet", "-n", "2", *place, "--", *ATB_DIST, *flags]

    with subprocess.Popen(node(1), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as other:
        done = run(*node(0))
        said = other.communicate(timeout=60)
    assert done.returncode == other.returncode == 0, (done.stderr, said)
    found = json.loads(done.stdout)
    assert found["outputs"] == alone["outputs"]
    assert (found["tp"], found["backend"]) == (4, "lcal+gloo")


def test_addresses_left_over_from_another_job_are_not_used(
    monkeypatch: pytest.MonkeyPatch, alone: dict[str, Any]
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    found = generate(*PROMPTS, "--tp", "2", "--backend", "gloo", "--timeout", "20")
    assert found["outputs"] == alone["outputs"]


def test_mpi_carries_the_model_too(alone: dict[str, Any]) -> None:
    found = generate(*PROMPTS, "--backend", "mpi", prefix=LAUNCHERS["mpiexec"](2))
    assert found["outputs"] == alone["outputs"]
    assert found["backend"] == "mpi"


def test_logprobs_read_back_bit_for_bit() -> None:
    found = generate("--prompt", "To be", "--max-tokens", "5", "--logprobs", "2")
    for step in found["outputs"][0]["logprobs"]:
        value = step["logprob"]
        assert struct.unpack("f", struct.pack("f", value))[0] == value, "an fp32 number, exactly"
        assert max(step["top"].values()) == value, "greedy takes the likeliest"
        assert len(step["top"]) == 2


def test_text_and_stream_print_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    flags = ["generate", "--model", str(BARD), *PROMPTS, "--n", "2", "--temperature", "0.8"]
    assert cli.main(flags) == 0
    whole = capfd.readouterr().out
    assert cli.main([*flags, "--stream"]) == 0
    assert capfd.readouterr().out == whole
    assert whole.startswith("ROMEO.")


def test_prompts_come_from_files_and_ids_too(tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("ROMEO.")
    flags = ["--max-tokens", "4", "--prompt-file", str(tmp_path / "prompt.txt")]
    found = generate("ROMEO.", *flags, "--prompt-ids", "592,47,39,49,16", "--ignore-eos")
    assert len({tuple(o["token_ids"]) for o in found["outputs"]}) == 1
    assert len(found["outputs"]) == 3


def test_stop_strings_end_the_text() -> None:
    whole = generate("--prompt", "ROMEO.", "--max-tokens", "40")["outputs"][0]["text"]
    word = whole.split()[5]
    found = generate("--prompt", "ROMEO.", "--max-tokens", "40", "--stop", word)["outputs"][0]
    assert found["text"] == whole[: whole.index(word)]
    assert found["finish_reason"] == "stop"


FLAGS = ["--prompt", "x"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--model", "BARD"], "no prompt was given"),
        (["--model", "BARD", "--prompt", ""], "the prompt is empty"),
        (["--model", "BARD", "--prompt", "a " * 2000], "has .* tokens; with max_model_len=1024"),
        (["--model", "BARD", "--prompt-ids", "1,99999"], "token id 99999 is out of range"),
        (["--model", "BARD", "--prompt-ids", "1,x"], "'1,x' is not a list"),
        (["--model", "BARD", "--prompt-file", "nowhere"], "nowhere can't be read"),
        (["--model", "nowhere", *FLAGS], "--model nowhere does not exist"),
        (["--model", "no-such-org/model", *FLAGS], "can't be downloaded"),
        (["--model", "BARD", *FLAGS, "--tp", "9"], "heads=8 can't be cut over tp=9.*use tp <= 8"),
        (["--model", "BARD", *FLAGS, "--tp", "0"], "tp=0 is out of range"),
        (["--model", "BARD", *FLAGS, "--dtype", "int3"], "dtype=int3 is not a known type"),
        (["--model", "BARD", *FLAGS, "--kv-dtype", "int4"], "kv_dtype=int4 is not a known type"),
        (["--model", "BARD", *FLAGS, "--backend", "magic"], "backend=magic is unknown; use auto"),
        (["--model", "BARD", *FLAGS, "--backend", "hccl"], "hccl is not installed here"),
        (["--model", "BARD", *FLAGS, "--tp", "2", "--backend", "mpi"], "start the ranks with mpi"),
        (["--model", "BARD", *FLAGS, "--tp", "2", "--backend", "local"], "local serves one rank"),
        (["--model", "BARD", *FLAGS, "--top-p", "7"], "top_p=7.0 is out of range"),
        (["--model", "BARD", *FLAGS, "--max-tokens", "0"], "max_tokens=0 is out of range"),
        (["--model", "BARD", *FLAGS, "--max-model-len", "9999"], "exceeds the model's 1024"),
        (["--model", "BARD", *FLAGS, "--timeout", "-1"], "out of range; use seconds > 0"),
        (["--model", "BARD", *FLAGS, "--max-num-seqs", "999"], "can't hold a token of each"),
        (["--model", "BARD", *FLAGS, "--kv-memory", "5"], "holds no block"),
        (["--model", "BARD", *FLAGS, "--json", "--stream"], "leave out --stream"),
        (["--model", "BARD", *FLAGS, "--bogus"], "unrecognized arguments: --bogus"),
    ],
    ids=lambda v: " ".join(v[2:])[:40] if isinstance(v, list) else "",
)
def test_what_is_wrong_costs_one_line(
    flags: list[str], told: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["generate", *(str(BARD) if f == "BARD" else f for f in flags)]) == 2
    output = capfd.readouterr()
    lines = [line for line in output.err.splitlines() if line]
    assert len(lines) == 1, output.err
    assert lines[0].startswith("atb-dist: error: ")
    assert re.search(told, lines[0]), lines[0]
    assert output.out == ""


def test_a_wrong_checkpoint_is_refused_under_a_launcher_without_a_traceback(
    tmp_path: Path,
) -> None:
    tiny_checkpoint(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    command = [*ATB_DIST, "generate", "--model", str(tmp_path), "--prompt-ids", "1,2"]
    done = run(*LAUNCHERS["atb-dist"](3), *command)
    assert done.returncode == 2
    assert "is truncated" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_tp_that_is_not_the_launchers_is_refused() -> None:
    command = [*ATB_DIST, "generate", "--model", str(BARD), "--prompt", "x", "--tp", "3"]
    done = run(*LAUNCHERS["atb-dist"](2), *command)
    assert done.returncode == 2
    assert "--tp 3, but the launcher started 2 ranks" in done.stderr


def test_ranks_with_different_options_are_refused() -> None:
    script = (
        "import os, sys; from atb_dist.cli import main;"
        "sys.exit(main(['generate', '--model', sys.argv[1], '--prompt', 'x', '--dtype',"
        " 'fp32' if os.environ['RANK'] == '1' else 'bf16']))"
    )
    done = run(*LAUNCHERS["atb-dist"](2), sys.executable, "-c", script, str(BARD))
    assert done.returncode == 2
    assert "rank 1 has another engine options than rank 0" in done.stderr
    assert "Traceback" not in done.stderr


def test_info_prints_what_serves_what() -> None:
    done = run(*ATB_DIST, "info", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["back ends"]["lcal"] == "ready"
    assert report["operators"]["linear"].startswith("simd")
    assert "pip install" in report["devices"]["npu"]
