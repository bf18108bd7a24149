"""Stopping: ids, strings across tokens, limits, and what text is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atb_dist.config import SamplingParams
from atb_dist.engine.stop import StopChecker


class Letters:
    """A detokenizer whose tokens are pieces of text by number."""

    def __init__(self, pieces: list[str]):
        self.pieces = pieces

    def add(self, token: int) -> str:
        return self.pieces[token]

    def finish(self) -> str:
        return ""


def show(pieces: list[str], params: SamplingParams, eos: tuple[int, ...] = ()) -> tuple[str, str]:
    checker = StopChecker(params, eos, params.max_tokens, Letters(pieces))
    text = ""
    for token in range(len(pieces)):
        verdict = checker.add(token)
        text += verdict.text
        if verdict.finish_reason:
            return text, verdict.finish_reason
    return text, "none"


def test_a_stop_string_across_tokens_is_never_shown() -> None:
    params = SamplingParams(stop=["END"], max_tokens=99)
    assert show(["abE", "N", "Dxyz"], params) == ("ab", "stop")
    assert show(["abE", "N", "x", "y"], params) == ("abENxy", "none")
    assert show(["E", "EN", "D!"], params) == ("E", "stop")


def test_the_earliest_of_several_stop_strings_counts() -> None:
    assert show(["one two"], SamplingParams(stop=["two", "e t"], max_tokens=9)) == ("on", "stop")


def test_eos_and_stop_ids_end_without_their_text() -> None:
    assert show(["a", "</s>"], SamplingParams(max_tokens=9), eos=(1,)) == ("a", "stop")
    ignoring = SamplingParams(max_tokens=9, ignore_eos=True)
    assert show(["a", "</s>", "b"], ignoring, eos=(1,)) == ("a</s>b", "none")
    assert show(["a", "b"], SamplingParams(max_tokens=9, stop_token_ids=(1,))) == ("a", "stop")


def test_the_length_limit_releases_held_text() -> None:
    params = SamplingParams(stop=["END"], max_tokens=2)
    assert show(["ab", "EN", "D"], params) == ("abEN", "length")
    assert show(["ab", "END"], params) == ("ab", "stop"), "a stop string wins at the limit"


@given(
    st.lists(st.text("abc", max_size=4), max_size=12),
    st.lists(st.text("abc", min_size=1, max_size=3), max_size=3),
)
def test_text_is_what_stands_before_the_first_stop_string(
    pieces: list[str], stop: list[str]
) -> None:
    text, reason = show(pieces, SamplingParams(stop=stop, max_tokens=99))
    whole = "".join(pieces)
    places = [whole.find(s) for s in stop if s in whole]
    if reason == "stop":
        assert text == whole[: len(text)]
        assert any(whole.startswith(s, len(text)) for s in stop)
    else:
        assert not places
        assert whole.startswith(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("top_p", 0), ("top_k", -1), ("n", 0), ("max_tokens", 0), ("seed", -1),
     ("min_p", 2), ("repetition_penalty", 0), ("stop", [""]), ("logprobs", 101)],
)  # fmt: skip
def test_sampling_values_out_of_range_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field}=.* is out of range; use {field}"):
        SamplingParams(**{field: value})  # type: ignore[arg-type]
