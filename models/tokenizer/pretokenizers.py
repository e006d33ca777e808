"""Pre-tokenizer families of byte-level BPE: how text is cut before merging. Data only.

A recipe is a list of patterns applied one after the other: each cuts every piece of the one before into its matches and
what lies between them. The patterns are those of the models' own tokenizer files, in Oniguruma's syntax.
"""

from __future__ import annotations

from dataclasses import dataclass

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"  # letters with at most one leading symbol or space
_DIGIT, _DIGITS_3, _DIGITS = r"\p{N}", r"\p{N}{1,3}", r"\p{N}+"
_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SYMBOLS_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"  # a run of spaces leaves its last one for the next word

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = "|".join((_CONTRACTION, _WORD, _DIGITS_3, _SYMBOLS, _BLANKS))
_QWEN2 = "|".join((_CONTRACTION, _WORD, _DIGIT, _SYMBOLS, _BLANKS))
_QWEN35 = "|".join(
    (_CONTRACTION, r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+", _DIGIT, r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*", _BLANKS)
)


def _case_aware(*, suffix: str, digits: str, symbols: str, outside: str = "") -> str:
    """Words are upper-case letters, then lower-case ones; letters without case are both."""
    upper = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}{outside}]"
    lower = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}{outside}]"
    lead = r"[^\r\n\p{L}\p{N}]?"
    return "|".join((f"{lead}{upper}*{lower}+{suffix}", f"{lead}{upper}+{lower}*{suffix}", digits, symbols, _BLANKS))


_TEKKEN = _case_aware(suffix="", digits=_DIGIT, symbols=_SYMBOLS_SLASH)
_GPT4O = _case_aware(suffix=f"{_CONTRACTION}?", digits=_DIGITS_3, symbols=_SYMBOLS_SLASH)
_KIMI = r"\p{Han}+|" + _case_aware(
    suffix=f"{_CONTRACTION}?", digits=_DIGITS_3, symbols=_SYMBOLS, outside=r"&&[^\p{Han}]"
)


def _code_points(ranges: str) -> str:
    """The inside of a character class, from hexadecimal code points and ranges of them."""
    return "".join("-".join(rf"\x{{{end}}}" for end in item.split("-")) for item in ranges.split())


# The cased letters of the first DeepSeek models: an old Unicode's, without Georgian and small Armenian ones. By number,
# because editors and tools normalise several of these characters into others.
_CASED = _code_points(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386 388-38A 38C 38E-3A1 "
    "3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A "
    "1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4 "
    "1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128 "
    "212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D "
    "A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3 "
    "104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_PUNCTUATION = _code_points("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002")
_EAST_ASIAN = _code_points("4E00-9FA5 800-4E00 AC00-D7FF")
_HAN_KANA = _code_points("4E00-9FA5 3040-309F 30A0-30FF")
_DEEPSEEK_WORDS = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|" + _BLANKS
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One family: its patterns and the defaults that come with it."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token as a whole is taken as it is
    add_bos: bool = False


_FAMILIES: tuple[tuple[str, Recipe], ...] = (
    (
        "default",
        Recipe((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, _DIGITS, "[0-9][0-9][0-9]")),
    ),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4",
        Recipe((_GPT2,)),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        Recipe((_DIGIT, _GPT2)),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        Recipe((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    (
        "dbrx smaug-bpe glm4 chatglm-bpe",
        Recipe((_LLAMA3,)),
    ),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
        Recipe((_QWEN2,)),
    ),
    (
        "qwen35",
        Recipe((_QWEN35,)),
    ),
    (
        "deepseek-llm",
        # `\s+$`, but without trying again from every space of a long run
        Recipe((r"[\r\n]", rf"\s?[{_CASED}]+", rf"\s?[{_PUNCTUATION}]+", r"(?<!\s)\s+\z", f"[{_EAST_ASIAN}]+", _DIGIT)),
    ),
    (
        "deepseek-coder",
        Recipe((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", f"[{_EAST_ASIAN}]+", _DIGIT)),
    ),
    (
        "deepseek-v3 hunyuan-dense joyai-llm",
        Recipe((_DIGITS_3, f"[{_HAN_KANA}]+", _DEEPSEEK_WORDS)),
    ),
    (
        "gpt-4o llama4 kanana2 talkie minimax-m2",
        Recipe((_GPT4O,)),
    ),
    (
        "tekken",
        Recipe((_TEKKEN,), ignore_merges=True, add_bos=True),
    ),
    (
        "kimi-k2",
        Recipe((_KIMI,)),
    ),
    (
        "seed-coder",
        Recipe(("|".join((_CONTRACTION, _WORD, _DIGIT, r" ?[^\s\p{L}\p{N}\r\n]+", _BLANKS)),)),
    ),
    (
        "falcon",
        Recipe((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    ),
    (
        "minicpm5",
        Recipe((_DIGITS_3, "|".join((_CONTRACTION, _WORD, _DIGITS, _SYMBOLS, _BLANKS))), ignore_merges=True),
    ),
)

RECIPES: dict[str, Recipe] = {name: recipe for names, recipe in _FAMILIES for name in names.split()}
