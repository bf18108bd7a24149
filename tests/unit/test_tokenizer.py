"""The tokenizer: one BOS, whole characters, and the library's own text in the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer

from atb_dist.errors import ConfigError
from atb_dist.tokenizer import Tokenizer, read_generation_config

BARD = Path(__file__).parents[2] / "examples" / "models" / "bard"


def write_byte_tokenizer(directory: Path, *, adds_bos: bool, template: bool) -> None:
    """A byte-level tokenizer: every byte a token, so that characters span several."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{c: i + 2 for i, c in enumerate(alphabet)}}
    inner = Inner(models.BPE(vocabulary, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<s>", "</s>"])
    if template:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    inner.save(str(directory / "tokenizer.json"))
    settings_ = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": adds_bos}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings_))


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [True, False])
def test_bos_stands_there_at_most_once(tmp_path: Path, adds_bos: bool, template: bool) -> None:
    write_byte_tokenizer(tmp_path, adds_bos=adds_bos, template=template)
    tokenizer = Tokenizer.from_dir(tmp_path)
    for text in ("hello", "<s>hello", "<s><s>hello"):
        ids = tokenizer.encode(text)
        has_bos = adds_bos or template or text.startswith("<s>")
        assert ids.count(0) == int(has_bos)
        assert tokenizer.decode(ids) == "hello"


def test_ids_are_those_of_transformers() -> None:
    ours, theirs = Tokenizer.from_dir(BARD), AutoTokenizer.from_pretrained(BARD)
    text = "ROMEO.\nWhat light through yonder window breaks? 'Tis é!"
    assert ours.encode(text) == theirs(text).input_ids
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text).input_ids)


@settings(deadline=None)
@given(st.text(max_size=30), st.text(min_size=1, max_size=30))
def test_pieces_join_to_the_whole_and_never_end_in_half_a_character(
    byte_level: Tokenizer, prompt: str, text: str
) -> None:
    before, after = byte_level.encode(prompt), byte_level.encode(text)
    detokenizer = byte_level.detokenizer(before)
    pieces = [detokenizer.add(token) for token in after]
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)
    assert "".join(pieces) + detokenizer.finish() == text


def test_an_unfinished_character_is_shown_at_the_end_only(byte_level: Tokenizer) -> None:
    detokenizer = byte_level.detokenizer([])
    ids = byte_level.encode("a€")
    assert [detokenizer.add(token) for token in ids[:-1]] == ["a", "", ""]
    assert "\ufffd" in detokenizer.finish()


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(directory, adds_bos=False, template=False)
    return Tokenizer.from_dir(directory)


def test_missing_and_broken_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ConfigError, match="convert it: python -c"):
        Tokenizer.from_dir(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer\.json can't be read"):
        Tokenizer.from_dir(tmp_path)


def test_a_model_without_a_chat_template_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        Tokenizer.from_dir(BARD).chat([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"eos_token_id": 2}, {"eos_ids": (2,)}),
        ({"eos_token_id": [2, 9], "temperature": 0.6}, {"eos_ids": (2, 9)}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9},
         {"temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": 0.0}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
    ],
)  # fmt: skip
def test_generation_config(tmp_path: Path, written: object, read: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    assert read_generation_config(tmp_path) == read


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ([1], "holds a list, not an object"),
        ({"eos_token_id": "x"}, "eos_token_id='x' must be an id"),
        ({"eos_token_id": [2, None]}, r"eos_token_id=\[2, None\] must be an id"),
        ({"do_sample": True, "top_p": "a"}, "top_p='a' must be a number"),
    ],
)
def test_a_generation_config_that_makes_no_sense_is_named(
    tmp_path: Path, written: object, told: str
) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps(written))
    with pytest.raises(ConfigError, match=told):
        read_generation_config(tmp_path)
