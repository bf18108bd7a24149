"""Text to token ids and back, with the tokenizers library. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atb_dist.config import token_ids
from atb_dist.errors import ConfigError

if TYPE_CHECKING:
    import tokenizers

CONTEXT_TOKENS = 6  # enough for a decoder to see what stands before a token
REPLACEMENT = "\ufffd"  # what incomplete UTF-8 decodes to


class Tokenizer:
    """A checkpoint's tokenizer.json."""

    def __init__(self, inner: tokenizers.Tokenizer, directory: Path, settings: dict[str, Any]):
        self._inner = inner
        self._directory = directory
        bos = settings.get("bos_token")
        bos = bos.get("content") if isinstance(bos, dict) else bos
        self.bos_id: int | None = inner.token_to_id(bos) if bos else None
        self._adds_bos = bool(settings.get("add_bos_token", False))

    @classmethod
    def from_dir(cls, directory: str | Path) -> Tokenizer:
        """Read tokenizer.json and tokenizer_config.json of a checkpoint.

        Raises ConfigError when there is none, or only a SentencePiece model.
        """
        import tokenizers

        place = Path(directory)
        file = place / "tokenizer.json"
        if not file.exists():
            if (place / "tokenizer.model").exists():
                raise ConfigError(
                    f"{place} has tokenizer.model but no tokenizer.json; convert it: python -c "
                    f"\"from transformers import AutoTokenizer as T; T.from_pretrained('{place}')"
                    f".save_pretrained('{place}')\""
                )
            raise ConfigError(f"{place} has no tokenizer.json; give token ids or add the file")
        try:
            inner = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"{file} can't be read: {error}") from error
        inner.no_truncation()
        inner.no_padding()
        return cls(inner, place, _read_settings(place / "tokenizer_config.json"))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a prompt; the beginning-of-sequence id stands there at most once."""
        ids: list[int] = self._inner.encode(text).ids
        bos = self.bos_id
        if bos is None:
            return ids
        if self._adds_bos and ids[:1] != [bos]:
            ids = [bos, *ids]
        while ids[:2] == [bos, bos]:  # written in the text, or by a chat template, as well
            ids = ids[1:]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without special tokens."""
        return str(self._inner.decode(list(ids), skip_special_tokens=True))

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the ids of a conversation in the model's own template, ready for the answer.

        Raises ConfigError when transformers is not installed or the model has no template.
        """
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise ConfigError("chat templates need transformers: pip install 'atb_dist[hf]'") from (
                error
            )
        full = AutoTokenizer.from_pretrained(str(self._directory))
        if full.chat_template is None:
            raise ConfigError(
                f"{self._directory} has no chat template; use generate with a plain prompt"
            )
        text = full.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        return self.encode(str(text))

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """Return a Detokenizer of what follows the prompt."""
        return Detokenizer(self, prompt)


class Detokenizer:
    """Text of tokens as they come, whole characters only.

    The pieces joined are what decoding everything at once adds to the prompt's text.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int] = ()):
        self._tokenizer = tokenizer
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._shown = tokenizer.decode(self._ids)

    def add(self, token: int) -> str:
        """Return the text that the token completes; "" while a character is incomplete."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(REPLACEMENT):
            return ""
        piece = text[len(self._shown) :]
        self._ids = self._ids[-CONTEXT_TOKENS:]
        self._shown = self._tokenizer.decode(self._ids)
        return piece

    def finish(self) -> str:
        """Return what was held back: an incomplete character as the replacement character."""
        piece = self._tokenizer.decode(self._ids)[len(self._shown) :]
        self._shown += piece
        return piece


def _read_settings(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        settings = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} can't be read: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{file} holds a {type(settings).__name__}, not an object")
    return settings


def read_generation_config(directory: str | Path) -> dict[str, Any]:
    """Return generation_config.json's defaults, in the names of SamplingParams.

    eos_ids: tuple of ids, only if it names any. Without do_sample transformers decodes greedily,
    whatever the temperature; so does this. Raises ConfigError for values of the wrong kind.
    """
    found = _read_settings(Path(directory) / "generation_config.json")
    defaults: dict[str, Any] = {}
    eos = token_ids(found.get("eos_token_id"), "generation_config.json: eos_token_id")
    if eos:
        defaults["eos_ids"] = eos
    if found.get("repetition_penalty") is not None:
        defaults["repetition_penalty"] = _number(found, "repetition_penalty", 1.0)
    if not found.get("do_sample", False):
        return defaults
    defaults["temperature"] = _number(found, "temperature", 1.0)
    defaults["top_k"] = int(_number(found, "top_k", 50))
    defaults["top_p"] = _number(found, "top_p", 1.0)
    defaults["min_p"] = _number(found, "min_p", 0.0)
    return defaults


def _number(found: dict[str, Any], key: str, otherwise: float) -> float:
    value = otherwise if found.get(key) is None else found[key]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"generation_config.json: {key}={value!r} must be a number")
    return float(value)
