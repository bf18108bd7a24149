"""What a rank keeps in memory and copies out of files while it loads and runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from model_body import decode

from atb_dist.comm import RankInfo
from atb_dist.config import EngineConfig
from atb_dist.engine.startup import prepare, start
from atb_dist.testing.checkpoints import tiny_checkpoint

SIZES = {
    "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256,
    "intermediate_size": 8192, "vocab_size": 8000, "max_position_embeddings": 4096,
}  # fmt: skip
MB = 1_000_000


def anonymous_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon in /proc/self/status")


class Peak:
    """The highest anonymous memory while in the with block, looked at every 2 ms."""

    def __enter__(self) -> Peak:
        self.before = self.bytes = anonymous_bytes()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._ended.is_set():
            self.bytes = max(self.bytes, anonymous_bytes())
            time.sleep(0.002)

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()


def load_and_decode(info: RankInfo, directory: str) -> tuple[int, int, int]:
    """Return peak growth, this rank's shard, and the bytes it read."""
    with Peak() as peak:
        decode(info, directory, [[1, 2, 3]], 8)
        growth = peak.bytes - peak.before
    engine = EngineConfig(tp=info.size, threads=1)
    job = prepare(Path(directory), engine, info.size, info.rank)
    again = RankInfo(**{**vars(info), "session": info.session + "-again"})
    started = start(job, engine, again)
    started.tp.close()
    return growth, job.plan.num_elements() * 2, started.bytes_read


@pytest.mark.ranks(2)
def test_a_rank_holds_its_shard_and_reads_its_bytes(ranks: Any, tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path, dtype="bf16", files=3, **SIZES)
    whole = sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))
    for growth, shard, read in ranks.run(load_and_decode, str(tmp_path), backend="none"):
        assert shard < 0.52 * whole
        assert growth < shard + 200 * MB, "more than the shard, the cache in use, and slack"
        assert read <= 1.02 * shard
