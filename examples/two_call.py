"""The two-call API: prefill a prompt, then decode token by token. Runs under any launcher too."""

import sys
from pathlib import Path

import torch

from atb_dist import ModelConfig, TransformerModel

BARD = Path(__file__).parent / "models" / "bard"


def main() -> None:
    config = ModelConfig()
    config.model_type = "llama"
    config.hidden_size, config.num_layers = 256, 4
    config.num_heads, config.num_kv_heads, config.head_dim = 8, 4, 32
    config.intermediate_size, config.vocab_size = 704, 2048

    model = TransformerModel(config)
    model.load_weights(sys.argv[1] if len(sys.argv) > 1 else str(BARD))
    prompt = torch.tensor([[1, 40, 41, 42]])
    cache = model.prefill(prompt, torch.arange(prompt.shape[1]))
    ids = [int(cache.logits.argmax())]
    for _ in range(15):
        logits, cache = model.decode_step(torch.tensor([[ids[-1]]]), cache)
        ids.append(int(logits.argmax()))
    print(ids)


if __name__ == "__main__":
    main()
