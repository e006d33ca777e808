"""The table of request fields: every sampling or constraint field of OpenAI, vLLM, SGLang, llama.cpp and Ollama that is
not implemented, with the values at which it changes nothing.

A field that a request schema declares is implemented. A field listed here is refused by name unless it is at one of its
neutral values: it would change the answer, and an answer without it would be wrong in silence. Anything else is
accepted, ignored and counted (`surefoot_ignored_fields_total`). To implement a field, move it from here to a schema.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ...kernels.errors import RequestError

_OFF: tuple[object, ...] = (None, False)
_NONE: tuple[object, ...] = (None,)
_ANY = object()  # qualifies another field, which is refused itself

# --- OpenAI ---
_OPENAI: dict[str, tuple[object, ...]] = {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "modalities": (None, ["text"]),
    "audio": _NONE,
    "prediction": _NONE,
    "verbosity": (None, "medium"),
    "web_search_options": _NONE,
    "moderation": _NONE,
    "service_tier": (None, "auto", "default"),
    "store": _OFF,
    "background": _OFF,
    "background_options": _NONE,
    "conversation": _NONE,
    "context_management": (None, []),
    "max_tool_calls": _NONE,
    "truncation": (None, "disabled"),
    "access_programs": _NONE,
    "image": _NONE,
}

# --- vLLM ---
_VLLM: dict[str, tuple[object, ...]] = {
    "use_beam_search": _OFF,
    "length_penalty": (None, 1),
    "early_stopping": _OFF,
    "bad_words": (None, []),
    "logits_processors": (None, []),
    "allowed_token_ids": _NONE,
    "include_stop_str_in_output": _OFF,
    "skip_special_tokens": (None, True),
    "spaces_between_special_tokens": (None, True),
    "truncate_prompt_tokens": _NONE,
    "truncation_side": _NONE,
    "logprob_token_ids": _NONE,
    "flat_logprobs": _OFF,
    "guided_json": _NONE,
    "guided_regex": _NONE,
    "guided_choice": _NONE,
    "guided_grammar": _NONE,
    "guided_json_object": _OFF,
    "guided_decoding_backend": _NONE,
    "guided_whitespace_pattern": _NONE,
    "chat_template": _NONE,
    "documents": (None, []),
    "mm_processor_kwargs": (None, {}),
    "media_io_kwargs": (None, {}),
    "repetition_detection": _NONE,
    "prompt_embeds": _NONE,
    "kv_transfer_params": _NONE,
    "vllm_xargs": (None, {}),
    "logits_processor_pattern": _NONE,
    "top_p_decay": (None, 1),
    "no_repeat_ngram_size": (None, 0),
    "top_a": (None, 0),
    "detokenize": (None, True),
    "output_kind": _NONE,
    "lora_request": _NONE,
}

# --- SGLang ---
_SGLANG: dict[str, tuple[object, ...]] = {
    "regex": (None, ""),
    "ebnf": (None, ""),
    "structural_tag": _NONE,
    "stop_regex": (None, "", []),
    "no_stop_trim": _OFF,
    "custom_logit_processor": _NONE,
    "custom_params": _NONE,
    "session_params": _NONE,
    "lora_path": _NONE,
    "return_hidden_states": _OFF,
    "return_routed_experts": _OFF,
    "min_new_tokens": (None, 0),
    "max_new_tokens": _NONE,
    "sampling_seed": _NONE,
    "sampling_params": (None, {}),
    "separate_reasoning": (None, True),
    "stream_reasoning": (None, True),
    "input_ids": _NONE,
    "input_embeds": _NONE,
    "return_logprob": _OFF,
    "top_logprobs_num": (None, 0),
    "token_ids_logprob": _NONE,
}

# --- llama.cpp ---
_LLAMA_CPP: dict[str, tuple[object, ...]] = {
    "n_predict": (None, -1),
    "n_probs": (None, 0),
    "min_keep": (None, 0),
    "typical_p": (None, 1),
    "tfs_z": (None, 1),
    "top_n_sigma": (None, -1),
    "adaptive_target": (None, -1),
    "adaptive_decay": (_ANY,),
    "dynatemp_range": (None, 0),
    "dynatemp_exponent": (_ANY,),
    "repeat_penalty": (None, 1),
    "repeat_last_n": (_ANY,),
    "penalize_nl": _OFF,
    "mirostat": (None, 0),
    "mirostat_tau": (_ANY,),
    "mirostat_eta": (_ANY,),
    "dry_multiplier": (None, 0),
    "dry_base": (_ANY,),
    "dry_allowed_length": (_ANY,),
    "dry_penalty_last_n": (_ANY,),
    "dry_sequence_breakers": (_ANY,),
    "xtc_probability": (None, 0),
    "xtc_threshold": (_ANY,),
    "samplers": (None, []),
    "grammar_lazy": _OFF,
    "grammar_triggers": (None, []),
    "post_sampling_probs": _OFF,
    "t_max_predict_ms": (None, -1, 0),
    "n_indent": (None, 0),
    "n_keep": (None, 0, -1),
    "n_discard": (None, 0),
    "n_cache_reuse": (None, 0),
    "cache_prompt": (None, True),
    "id_slot": (None, -1),
    "image_data": (None, []),
    "multimodal_data": (None, []),
    "lora": (None, []),
    "response_fields": (None, []),
    "reasoning_format": (None, "auto", "none"),
    "input_prefix": (None, ""),
    "input_suffix": (None, ""),
    "input_extra": (None, []),
}

# --- Ollama ---
_OLLAMA: dict[str, tuple[object, ...]] = {
    "options": (None, {}),
    "format": (None, ""),
    "think": _NONE,
    "raw": _OFF,
}

# --- fields of a sibling route: refused where they mean nothing ---
_SIBLING: dict[str, tuple[object, ...]] = {
    "messages": _NONE,
    "prompt": _NONE,
    "n": (None, 1),
    "logprobs": _OFF,
    "max_tokens": _NONE,
    "max_output_tokens": _NONE,
    "input": _NONE,
    "instructions": (None, ""),
    "previous_response_id": _NONE,
    "include": (None, []),
    "text": (None, {"format": {"type": "text"}}),
    "reasoning": (None, {}),
    "echo": _OFF,
    "prompt_logprobs": _NONE,
    "suffix": (None, ""),
    "best_of": (None, 1),
    "top_logprobs": (None, 0),
    "response_format": (None, {"type": "text"}),
    "structured_outputs": _NONE,
    "json_schema": _NONE,
    "grammar": (None, ""),
    "max_completion_tokens": _NONE,
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "reasoning_effort": _NONE,
    "include_reasoning": (None, True),
    "thinking_token_budget": _NONE,
    "thinking_budget_tokens": (None, -1),
    "reasoning_budget": (None, -1),
}

# --- embeddings elsewhere: another vector for the same text, or another way to write it ---
_EMBEDDINGS: dict[str, tuple[object, ...]] = {
    "normalize": (None, True),
    "use_activation": (None, True),
    "embd_normalize": (None, 2),
    "embed_dtype": (None, "float32"),
    "endianness": (None, "native", "little"),
    "input_type": _NONE,
    "add_special_tokens": (None, True),
}

REFUSED: Mapping[str, tuple[object, ...]] = {
    **_OPENAI,
    **_VLLM,
    **_SGLANG,
    **_LLAMA_CPP,
    **_OLLAMA,
    **_SIBLING,
    **_EMBEDDINGS,
}

# --- refused, but there is another way to say it ---
_INSTEAD: Mapping[str, str] = {
    "guided_json": "structured_outputs.json",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_json_object": "structured_outputs.json_object",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
    "guided_decoding_backend": "structured_outputs, which has one backend",
    "regex": "structured_outputs.regex",
    "ebnf": "structured_outputs.grammar",
    "max_tokens": "max_output_tokens",
    "max_output_tokens": "max_tokens",
    "n_predict": "max_tokens, of which -1 asks for what fits",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "repeat_penalty": "repetition_penalty",
    "sampling_seed": "seed",
    "n_probs": "logprobs (in a chat with top_logprobs)",
    "top_logprobs_num": "logprobs (in a chat with top_logprobs)",
    "return_logprob": "logprobs",
    "input_ids": "prompt, which may be a list of token ids",
    "functions": "tools",
    "function_call": "tool_choice",
    "lora": "a model file into which it is merged",
    "options": "its entries as fields of the body",
    "format": "response_format",
    "think": "reasoning_effort",
    "response_format": "text.format",
}

_SPECULATIVE_PREFIX = "speculative."  # llama.cpp's per-request speculation settings


def sift(body: Mapping[str, object], implemented: Iterable[str], other_defaults: Collection[str] = ()) -> list[str]:
    """The names in `body` that nobody knows. RequestError names the first that is known, not implemented and set.

    Of `other_defaults` no value but null is neutral.
    """
    unknown: list[str] = []
    for name, value in body.items():
        if name in implemented:
            continue
        neutral = (None,) if name.startswith(_SPECULATIVE_PREFIX) or name in other_defaults else REFUSED.get(name)
        if neutral is None:
            unknown.append(name)
        elif _ANY not in neutral and not any(_same(value, default) for default in neutral):
            instead = f"use {_INSTEAD[name]}" if name in _INSTEAD else "leave it out or at its default"
            raise RequestError(
                f"'{name}' is not supported by this server; {instead}",
                param=name,
                code="unsupported_parameter",
            )
    return unknown


def _same(value: object, default: object) -> bool:
    """Equality that keeps true apart from 1."""
    return isinstance(value, bool) == isinstance(default, bool) and value == default
