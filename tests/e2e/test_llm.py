"""The LLM object and the two-call API, as scripts use them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import ATB_DIST, BARD, LAUNCHERS, run
from transformers import AutoModelForCausalLM

from atb_dist import LLM, ModelConfig, SamplingParams, TransformerModel
from atb_dist.errors import AtbDistError, ConfigError
from atb_dist.testing.checkpoints import tiny_checkpoint

GREEDY = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(BARD, tp=2, threads=1) as made:
        yield made


def test_prompts_come_back_in_order_n_for_each(llm: LLM) -> None:
    prompts = ["ROMEO.", [592, 47, 39], "The king is"]
    params = [GREEDY, SamplingParams(n=2, max_tokens=3, temperature=1.0), GREEDY]
    outputs = llm.generate(prompts, params)
    assert [(o.prompt_ids[:1], o.index) for o in outputs] == [
        ((592,), 0), ((592,), 0), ((592,), 1), (outputs[3].prompt_ids[:1], 0),
    ]  # fmt: skip
    assert outputs[0].prompt == "ROMEO."
    assert llm.generate([], GREEDY) == []
    assert llm.generate("ROMEO.", GREEDY)[0].token_ids == outputs[0].token_ids


def test_a_stream_grows_and_may_be_left(llm: LLM) -> None:
    texts = [output.text for output in llm.stream("ROMEO.", GREEDY)]
    assert texts == sorted(texts, key=len)
    assert texts[-1] == llm.generate("ROMEO.", GREEDY)[0].text
    for output in llm.stream(["ROMEO.", "To be"], SamplingParams(max_tokens=200)):
        if len(output.token_ids) > 2:
            break
    assert llm.generate("ROMEO.", GREEDY)[0].text == texts[-1], "the next call is clean"


def test_a_second_thread_is_refused_and_does_no_harm(llm: LLM) -> None:
    said: list[str] = []
    for _output in llm.stream("ROMEO.", GREEDY):

        def other() -> None:
            try:
                llm.generate("To be", GREEDY)
            except AtbDistError as error:
                said.append(str(error))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(said) == 12
    assert "another thread" in said[0]
    assert len(llm.generate("ROMEO.", GREEDY)[0].token_ids) == 12


def test_a_refused_prompt_leaves_the_others_unstarted_and_the_object_usable(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="token id 5000 is out of range"):
        llm.generate([[1, 2], [5000]], GREEDY)
    assert len(llm.generate("ROMEO.", GREEDY)) == 1


def test_several_live_in_one_process(llm: LLM, tmp_path: Path) -> None:
    wanted = llm.generate("ROMEO.", GREEDY)[0].token_ids
    tiny = tiny_checkpoint(tmp_path)
    with LLM(BARD, tp=3, threads=1) as second, LLM(tiny) as third:
        assert second.generate("ROMEO.", GREEDY)[0].token_ids == wanted
        assert len(third.generate([[1, 2, 3]], GREEDY)[0].token_ids) >= 1
        assert llm.generate("ROMEO.", GREEDY)[0].token_ids == wanted
        with pytest.raises(ConfigError, match=r"has no tokenizer\.json; give prompts as token"):
            third.generate("text", GREEDY)
    with pytest.raises(AtbDistError, match="this LLM is closed"):
        second.generate("ROMEO.", GREEDY)
    second.close()


def test_generation_config_gives_defaults_and_all_end_ids(tmp_path: Path) -> None:
    for file in BARD.iterdir():
        shutil.copy(file, tmp_path)
    with LLM(BARD) as plain:
        tokens = plain.generate("ROMEO.", SamplingParams(max_tokens=30))[0].token_ids
    settings = {"eos_token_id": [2, tokens[9]], "do_sample": True, "temperature": 0.5, "top_k": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    with LLM(tmp_path) as llm:
        assert (llm.default_params.temperature, llm.default_params.top_k) == (0.5, 3)
        output = llm.generate("ROMEO.", SamplingParams(max_tokens=30))[0]
        assert output.token_ids == tokens[: tokens.index(tokens[9]) + 1]
        assert output.finish_reason == "stop"
        again = [llm.generate("ROMEO.")[0].token_ids for _ in range(2)]
        assert again[0] == again[1], "seeded"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tp": 9}, "can't be cut over tp=9"),
        ({"bogus": 1}, "LLM has no option 'bogus'; there are tp, "),
        ({"tp": 2, "backend": "magic"}, "backend=magic is unknown"),
        ({"max_model_len": 5000}, "exceeds the model's 1024 positions"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    options: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        LLM(BARD, **options)  # type: ignore[arg-type]


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "print('once')\n"
        "from atb_dist import LLM, SamplingParams\n"
        f"llm = LLM({str(BARD)!r}, tp=2)\n"
        "print(len(llm.generate('ROMEO.', SamplingParams(max_tokens=3))[0].token_ids))\n"
    )
    done = run(sys.executable, str(script))  # never closed: the interpreter's end does it
    assert done.returncode == 0, done.stderr
    assert done.stdout == "once\n3\n"
    assert done.stderr == ""


def test_a_refusal_on_rank_0_is_raised_on_every_rank() -> None:
    code = (
        "import sys\n"
        "from atb_dist import LLM\n"
        "from atb_dist.comm import RankInfo\n"
        "llm = LLM(sys.argv[1])\n"
        "bad = [[99999]] if RankInfo.from_env().rank == 0 else [[1]]\n"
        "try:\n"
        "    llm.generate(bad)\n"
        "except ValueError as error:\n"
        "    print('refused', error)\n"
        "print(len(llm.generate([[1]])[0].token_ids) > 0)\n"
    )
    done = run(*LAUNCHERS["torchrun"](2), sys.executable, "-c", code, str(BARD))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 2
    assert done.stdout.count("token id 99999 is out of range") == 2
    assert done.stdout.count("True") == 2


def test_chat_without_a_template_is_refused() -> None:
    done = run(*ATB_DIST, "chat", "--model", str(BARD), input="hello\n")
    assert done.returncode == 2
    assert "has no chat template" in done.stderr


def test_chat_answers_over_two_ranks(tmp_path: Path) -> None:
    for file in BARD.iterdir():
        shutil.copy(file, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    command = [*ATB_DIST, "chat", "--model", str(tmp_path), "--max-tokens", "8"]
    alone = run(*command, input="Who goes there?\nSpeak!\n")
    assert alone.returncode == 0, alone.stderr
    assert len(alone.stdout.strip()) > 0
    spread = run(*command, "--tp", "2", input="Who goes there?\nSpeak!\n")
    assert spread.stdout == alone.stdout


IDS = torch.tensor([[592, 47, 39, 49, 16]])


def test_the_two_call_api_gives_transformers_logits(tmp_path: Path) -> None:
    oracle = AutoModelForCausalLM.from_pretrained(tiny_checkpoint(tmp_path), dtype=torch.float32)
    config = ModelConfig()
    config.model_type, config.hidden_size, config.num_layers = "llama", 64, 2
    config.num_heads, config.num_kv_heads, config.head_dim = 8, 4, 8
    config.intermediate_size, config.vocab_size = 176, 259
    model = TransformerModel(config)
    model.load_weights(tmp_path)
    ids = torch.tensor([[5, 9, 200]])
    with torch.inference_mode():
        cache = model.prefill(ids, torch.arange(3))
        for _ in range(150):  # beyond the blocks it began with
            assert (cache.logits - oracle(ids).logits[:, -1]).abs().max() < 1e-4
            token = cache.logits.argmax().view(1, 1)
            logits, cache = model.decode_step(token, cache)
            assert logits.shape == (1, 259)
            ids = torch.cat([ids, token], dim=1)
    model.close()


def test_two_call_mistakes_are_named() -> None:
    model = TransformerModel(ModelConfig(hidden_size=128, num_layers=5))
    with pytest.raises(ConfigError, match=r"hidden_size=128 \(checkpoint: 256\), num_layers=5"):
        model.load_weights(BARD)
    fresh = TransformerModel()
    with pytest.raises(ConfigError, match="call load_weights"):
        fresh.prefill(IDS, torch.arange(5))
    fresh.load_weights(BARD)
    with pytest.raises(ConfigError, match="position_ids must be 0 to 4"):
        fresh.prefill(IDS, torch.arange(1, 6))
    with pytest.raises(ConfigError, match="out of range"):
        fresh.prefill(torch.tensor([[5000]]), torch.arange(1))
    cache = fresh.prefill(IDS, torch.arange(5))
    with pytest.raises(ConfigError, match=r"decode_step takes \[1, 1\]"):
        fresh.decode_step(IDS, cache)
    fresh.close()


@pytest.mark.parametrize("launcher", ["atb-dist", "mpiexec"])
def test_the_two_call_example_under_launchers(launcher: str) -> None:
    example = BARD.parents[1] / "two_call.py"
    alone = subprocess.run([sys.executable, str(example)], capture_output=True, text=True)
    done = run(*LAUNCHERS[launcher](2), sys.executable, str(example))
    assert done.returncode == 0, done.stderr
    assert alone.stdout.strip() in done.stdout
