"""Make a tiny Qwen3-MoE model directory: config and tokenizer, no weights (for `--load-format dummy`).

Run by `install.sh` with the Python of the SGLang environment: `python make_tiny_model.py DIRECTORY`. The same input
gives the same bytes. The tokenizer knows one token per byte, so that a text of n ASCII characters is n tokens; the
rest of the vocabulary are words that only the (random) model speaks, so that each generated token has a text of its
own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCABULARY_SIZE = 4096
CONTEXT_LENGTH_TOKENS = 4096
END_OF_TEXT, TURN_START, TURN_END = SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model_config() -> dict[str, Any]:
    """`config.json`: what SGLang's `models/qwen3_moe.py` reads; about 10 million weights, 20 MB in bfloat16."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 256,
        "intermediate_size": 768,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT_LENGTH_TOKENS,
        "vocab_size": VOCABULARY_SIZE,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        **token_ids(),
    }


def token_ids() -> dict[str, int]:
    """Ids of the special tokens, which come first in the vocabulary."""
    return {"bos_token_id": 0, "eos_token_id": SPECIALS.index(TURN_END), "pad_token_id": 0}


def tokenizer() -> Tokenizer:
    """Byte-level BPE without merges: specials, the 256 bytes, then the words `w0259` … of the random model."""
    pieces = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    # Ġ is how byte-level tokenizers spell a leading space.
    pieces += [f"Ġw{number:04d}" for number in range(len(pieces), VOCABULARY_SIZE)]
    made = Tokenizer(models.BPE(vocab={piece: number for number, piece in enumerate(pieces)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in SPECIALS])
    return made


def tokenizer_config() -> dict[str, Any]:
    """`tokenizer_config.json`, as `PreTrainedTokenizerFast` reads it."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "model_max_length": CONTEXT_LENGTH_TOKENS,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def write_model(directory: Path) -> None:
    """Write the whole model directory; files that exist are overwritten."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(directory / "tokenizer.json"))
    for name, content in {
        "config.json": model_config(),
        "generation_config.json": token_ids(),
        "tokenizer_config.json": tokenizer_config(),
    }.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
