"""Tokens that are known by their text, for files that do not say what they are. Data only."""

from __future__ import annotations

# Ends the answer wherever it appears. Used beside the ids that the file names (eos, eot, eom).
END_OF_GENERATION = frozenset(
    {
        "</s>",
        "<EOT>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|call|>",
        "<|calls|>",
        "<|end_of_text|>",
        "<|end|>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|flush|>",
        "<|im_end|>",
        "<|return|>",
        "<|tool_response>",
        "<\uff5cend▁of▁sentence\uff5c>",
        "[EOS]",
        "[EOT]",
        "[e~[",
        "_<EOT>",
    }
)

# The end of a turn, in the order in which they are looked for when the file names none.
END_OF_TURN = (
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<turn|>",
    "<end_of_utterance>",
    "[EOT]",
    "<EOT>",
    "_<EOT>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<\uff5cend▁of▁sentence\uff5c>",
)

END_OF_MESSAGE = ("<|eom_id|>",)

# Fill-in-the-middle roles by their names in `tokenizer.ggml.fim_<role>_token_id`.
FILL_IN_THE_MIDDLE: dict[str, tuple[str, ...]] = {
    "pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<\uff5cfim▁begin\uff5c>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<\uff5cfim▁hole\uff5c>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<\uff5cfim▁end\uff5c>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "sep": ("<|file_sep|>",),
}

# A code model that starts a new file or repository has finished the one it was asked for.
FIM_ROLES_THAT_END = ("pad", "rep", "sep")

# Markers of a channel format that must stay visible in the text: the reasoning and tool parsers read them.
ALWAYS_VISIBLE = frozenset({"<|channel|>", "<|constrain|>", "<|message|>", "<|start|>"})

# `<|end|>` closes only one message of several where the format has tokens of its own for the end of the answer.
MESSAGE_END = "<|end|>"
ANSWER_ENDS = (frozenset({"<|return|>", "<|call|>"}), frozenset({"<|flush|>", "<|calls|>"}))

# Also HTML: these are markers only where the file itself says so.
HTML_TAGS = frozenset({"</s>", "<PRE>", "<SUF>", "<MID>"})

ALL = frozenset[str]().union(
    END_OF_GENERATION, END_OF_TURN, END_OF_MESSAGE, *FILL_IN_THE_MIDDLE.values(), ALWAYS_VISIBLE
)
