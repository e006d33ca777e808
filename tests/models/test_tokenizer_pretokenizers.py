"""Where every pre-tokenizer family cuts one text that tells them apart, and that no text makes them slow."""

from __future__ import annotations

import time

import pytest
from tokenizers import Regex, pre_tokenizers

from surefoot.models.tokenizer.pretokenizers import RECIPES

TEXT = "I'LL don't fooBAR 12345x  \n\n नमस्ते 日本語かな!/\n"
CUTS = {
    "default": "I¦'¦LL¦ don¦'¦t¦ fooBAR¦ ¦123¦45¦x¦  \n\n¦ नमस¦्¦त¦े¦ 日本語かな¦!/¦\n",
    "gpt-2": "I¦'¦LL¦ don¦'t¦ fooBAR¦ 12345¦x¦  \n\n¦ नमस¦्¦त¦े¦ 日本語かな¦!/¦\n",
    "starcoder": "I¦'¦LL¦ don¦'t¦ fooBAR¦ ¦1¦2¦3¦4¦5¦x¦  \n\n¦ नमस¦्¦त¦े¦ 日本語かな¦!/¦\n",
    "llama3": "I¦'LL¦ don¦'t¦ fooBAR¦ ¦123¦45¦x¦  \n\n¦ नमस¦्त¦े¦ 日本語かな¦!/\n",
    "dbrx": "I¦'LL¦ don¦'t¦ fooBAR¦ ¦123¦45¦x¦  \n\n¦ नमस¦्त¦े¦ 日本語かな¦!/\n",
    "qwen2": "I¦'LL¦ don¦'t¦ fooBAR¦ ¦1¦2¦3¦4¦5¦x¦  \n\n¦ नमस¦्त¦े¦ 日本語かな¦!/\n",
    "qwen35": "I¦'LL¦ don¦'t¦ fooBAR¦ ¦1¦2¦3¦4¦5¦x¦  \n\n¦ नमस्ते¦ 日本語かな¦!/\n",
    "deepseek-llm": "I¦'¦LL¦ don¦'¦t¦ fooBAR¦ ¦1¦2¦3¦4¦5¦x¦  ¦\n¦\n¦ ¦नमस्ते¦ ¦日本語かな¦!/¦\n",
    "deepseek-coder": "I¦'¦LL¦ don¦'¦t¦ fooBAR¦ ¦1¦2¦3¦4¦5¦x¦  ¦\n¦\n¦ ¦नमस¦्¦त¦े¦ ¦日本語かな¦!/¦\n",
    "deepseek-v3": "I¦'LL¦ don¦'t¦ fooBAR¦ ¦123¦45¦x¦  \n\n¦ नमस्ते¦ ¦日本語かな¦!/\n",
    "gpt-4o": "I'LL¦ don't¦ foo¦BAR¦ ¦123¦45¦x¦  \n\n¦ नमस्ते¦ 日本語かな¦!/\n",
    "tekken": "I¦'LL¦ don¦'t¦ foo¦BAR¦ ¦1¦2¦3¦4¦5¦x¦  \n\n¦ नमस्ते¦ 日本語かな¦!/\n",
    "kimi-k2": "I'LL¦ don't¦ foo¦BAR¦ ¦123¦45¦x¦  \n\n¦ नमस्ते¦ ¦日本語¦かな¦!/\n",
    "seed-coder": "I¦'LL¦ don¦'t¦ fooBAR¦ ¦1¦2¦3¦4¦5¦x¦  \n\n¦ नमस¦्त¦े¦ 日本語かな¦!/¦\n",
    "falcon": "I¦'¦LL¦ don¦'¦t¦ fooBAR¦ ¦123¦45¦x¦  \n\n¦ नमस¦्¦त¦े¦ 日本語かな¦!/¦\n",
    "minicpm5": "I¦'LL¦ don¦'t¦ fooBAR¦ ¦123¦45¦x¦  \n\n¦ नमस¦्त¦े¦ 日本語かな¦!/\n",
}
SAME = [
    ("llama3", "llama-bpe falcon3 pixtral lfm2"),
    ("dbrx", "smaug-bpe glm4 chatglm-bpe"),
    ("gpt-2", "phi-2 mpt olmo mellum exaone4 trillion jais"),
    ("starcoder", "refact command-r smollm codeshell exaone minerva-7b"),
    ("qwen2", "deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2"),
    ("deepseek-v3", "hunyuan-dense joyai-llm"),
    ("gpt-4o", "llama4 minimax-m2 kanana2"),
]


def cutter(name: str) -> pre_tokenizers.Sequence:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in RECIPES[name].patterns]
    )


@pytest.mark.parametrize("name", CUTS)
def test_cuts(name: str) -> None:
    assert "¦".join(piece for piece, _ in cutter(name).pre_tokenize_str(TEXT)) == CUTS[name]


def test_every_family_is_covered() -> None:
    covered = {id(RECIPES[name]) for name in CUTS}
    assert {id(recipe) for recipe in RECIPES.values()} == covered


@pytest.mark.parametrize(("first", "others"), SAME, ids=lambda value: value.split()[0])
def test_names_of_one_family(first: str, others: str) -> None:
    assert all(RECIPES[name] is RECIPES[first] for name in others.split())


def test_defaults_that_come_with_a_family() -> None:
    assert {name for name in CUTS if RECIPES[name].ignore_merges} == {"llama3", "tekken", "minicpm5"}
    assert {name for name in CUTS if RECIPES[name].add_bos} == {"llama3", "tekken"}


@pytest.mark.parametrize("name", CUTS)
def test_no_text_is_slow(name: str) -> None:
    cut = cutter(name)
    start = time.process_time()
    for unit in (" ", "\n", "a", "A", "1", "'", "/", " \n", "日", "aA", "\u0300", "\t\u2028"):
        cut.pre_tokenize_str(unit * 20_000 + "x")
    assert time.process_time() - start < 3.0
