"""What users of speculating servers reported, kind by kind: the test that asks it, or why nothing can.

A table of contents, held to the tests that there are.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

SPEED = {
    "lookup makes a batch of prose slower": "engine/speculation/test_never_slower.py traffic_that_gains_nothing",
    "lookup slows down with the prompt": "engine/speculation/test_ngram_index.py a_step_costs_the_same_at_any_context",
    "drafting is slower than plain for one creative answer": "engine/speculation/test_never_slower.py no_request_costs",
    "speed varies from prompt to prompt": "engine/speculation/test_never_slower.py no_kind_of_text_is_worse_than",
    "requests that join and leave across a limit": "server/test_reported_troubles.py the_policy_may_change_at_any_step",
    "drafts of no confidence are verified": "engine/speculation/test_cost.py a_hopeless_draft_is_left_alone",
    "acceptance collapses after a busy spell": "server/test_reported_troubles.py a_busy_spell_costs_no_acceptance",
    "reasoning text loses with lookup": "engine/speculation/test_never_slower.py traffic_that_gains_nothing",
    "stretches of bad drafts inside an answer": "engine/speculation/test_hard_cases.py code_and_prose_in_turns",
}
CONTROL = {
    "no switch per request": "server/test_speculation.py a_request_can_leave_speculation_out",
    "no switch while serving": "server/test_speculation_cases.py windows_change_while_a_stream_runs",
    "a constraint that was removed is accepted in silence": "server/test_errors.py known_but_missing_fields_are",
}
CACHE = {
    "the last blocks never hit": "server/test_real_engine.py a_repeated_prompt_is_cached_almost_whole",
    "the first repeat misses": "engine/test_core.py every_repeat_of_a_prompt_hits_within_one_block_of_all",
    "hits halve with a drafter": "server/test_reported_troubles.py a_chat_finds_its_prefix_again_with_a_drafter",
    "hit times tell prompts of others": "server/test_access.py every_key_is_a_tenant_with_its_own_salt",
    "the salt gets lost in an outer tier": "cannot apply: the cache has one tier; and a salt is the root of every key",
    "wrong text once the pool is full": "server/test_reported_troubles.py a_crowd_that_overflows_the_cache",
    "a prefix is read before it is computed": "engine/test_core.py sixteen_at_once_compute_a_shared_prefix_once",
    "a hit gives another text than a miss": "engine/test_core.py warm_equals_cold_at_every_offset_of_a_block",
    "use after eviction": "engine/test_core.py a_pool_of_little_more_than_one_request_serves_two_hundred",
    "a reset that says it did and did not": "server/test_reported_troubles.py a_reset_says_what_it_did_and_did_it",
}
EXACT = {
    "greedy answers differ with drafts": "server/test_speculation_cases.py a_word_repeated_48_times",
    "answers drift under penalties": "server/test_reported_troubles.py fifty_prompts_do_not_drift",
    "seeds of a batch mix": "server/test_reported_troubles.py requests_side_by_side_are_what_they_are_alone",
    "requests without a seed beside seeded ones": "server/test_reported_troubles.py seeded_and_unseeded_requests",
    "noise depends on a neighbour's top k": "server/test_reported_troubles.py requests_side_by_side_are_what_they_are",
    "unseeded requests share a seed": "server/test_chat.py unseeded_requests_draw_different_seeds",
    "draft probabilities are rounded otherwise": "cannot apply: a draft is accepted if it is the draw itself",
    "state after a rejection is not that before": "engine/test_draft_model.py rejected_rows_are_overwritten",
    "the choices of one request are the same": "server/test_real_engine.py choices_differ_and_the_first_keeps_the_seed",
    "choices get each other's index": "clients/test_litellm.py choices_keep_their_index",
    "another rule where probabilities are missing": "cannot apply: there is one rule, and it needs none",
    "adapter masks of requests for rows": "cannot apply: no adapters are served, and their field is refused",
    "an answer depends on its neighbours": "engine/test_core.py neighbours_change_nothing",
    "verify rows differ from decode rows": "server/test_speculation_cases.py accepted_tokens_are_scored_as_an_echo",
    "noise by row": "kernels/test_sampling.py neighbours_and_row_numbers_do_not_matter",
}
SAMPLING = {
    "penalties have no sign": "server/test_speculation_cases.py penalties_pull_both_ways_under_speculation",
    "a ban is ignored": "server/test_real_engine.py a_banned_token_never_appears",
    "a ban is undone by the temperature": "server/test_real_engine.py bans_and_exclusive_tokens_hold",
    "min_tokens counts steps": "server/test_reported_troubles.py min_tokens_counts_tokens_and_not_steps",
    "settings are dropped under speculation": "server/test_reported_troubles.py every_setting_holds_under_speculation",
    "a refusal comes inside the stream": "server/test_errors.py engine_refusal_comes_before_the_stream",
    "keys of a bias that are no ids": "server/test_errors.py wrong_values_name_their_field",
    "lists of allowed ids": "server/test_errors.py known_but_missing_fields_are_refused_by_name",
}
SCORES = {
    "log-probabilities of another row": "server/test_speculation_cases.py the_chosen_token_is_the_top_of_its_own_row",
    "only the first token's are right": "server/test_speculation_cases.py every_token_has_its_log_probabilities",
    "those of the prompt are corrupt": "server/test_real_engine.py prompt_logprobs_are_those_of_the_drawn_tokens",
    "an echo without an answer": "server/test_completions.py echo_with_logprobs_and_no_new_token",
}
METRICS = {
    "times between tokens are counted per output": "server/test_reported_troubles.py times_between_tokens_count_tokens",
    "acceptance is unclear": "server/test_reported_troubles.py a_full_copy_is_accepted_whole",
    "acceptance per request": "server/test_speculation.py no_window_changes_a_token_and_the_report_adds_up",
    "totals leave the input out": "server/responses/test_http.py input_and_output_tokens_are_the_total",
}
TEXT = {
    "tokens beyond the stop": "server/test_real_engine.py stop_strings_at_every_offset",
    "a stop across tokens never matches": "engine/test_stop_strings.py stop_across_pieces",
    "empty deltas while a stop is held back": "server/test_chat.py stream_has_role_first_no_empty_deltas",
    "a prompt that ends in a character is echoed": "server/test_real_engine.py a_prompt_ending_inside_a_character",
    "letters with accents break": "server/test_chat.py half_characters_never_leave",
    "a stop in an accepted window": "server/test_speculation_cases.py a_stop_at_every_offset_of_every_window",
}
SHAPES = {
    "usage without being asked": "server/test_chat.py stream_options_without_include_usage_give_no_usage",
    "the first delta has no role": "server/test_chat.py stream_has_role_first",
    "the usage chunk has choices": "server/test_chat.py include_usage_is_one_last_chunk_with_an_empty_list",
    "401 is no error object": "server/test_access.py wrong_keys_are_401_in_openai_shape",
    "a schema of no type is a 500": "server/test_structured.py what_cannot_be_held_is_refused",
}
TOOLS = {
    "arguments are missing": "server/tools/test_http.py sum",
    "two calls in one delta": "server/tools/test_dialects.py any_arguments_in_any_pieces",
    "arguments come twice": "server/tools/test_dialects.py calls_alone",
    "bursts give empty arguments": "server/tools/test_dialects.py any_arguments_in_any_pieces",
    "the reason of a call's end is wrong": "server/tools/test_http.py required_calls_are_enforced_by_a_grammar",
    "a quoted marker ends the reasoning": "server/reasoning/test_reasoning.py a_quoted_end_marker_ends_nothing",
    "a call is in the text too": "server/tools/test_http.py sum",
    "a marker without a call withholds the answer": "server/tools/test_dialects.py marker_and_then_prose",
}
GRAMMARS = {
    "drafts under a grammar kill the engine": "server/test_structured_real.py films_with_the_ngram_drafter",
    "answers are not valid with drafts": "server/test_structured_real.py every_schema_is_kept",
    "many at once are cut": "server/test_structured_real.py eight_at_once",
    "names come doubled": "server/test_structured_real.py no_name_is_doubled",
    "drafts of before a preemption": "server/test_structured_real.py preempted_once",
    "a format of nothing": "server/test_structured.py what_cannot_be_held_is_refused",
    "white space without end": "server/test_structured_real.py no_endless_white_space",
    "a pattern that begins with NUL": "server/test_structured_real.py a_leading_nul",
    "a schema that refers to itself": "engine/grammar/test_compiler.py hostile_constraints_are_bounded",
}
LIFE = {
    "a prompt beyond the cache blocks the queue": "server/test_real_engine.py a_prompt_that_never_fits_is_refused",
    "two half loaded prompts hold each other up": "engine/test_scheduler.py two_prompts_that_each_need_over_half",
    "prompt and answer at the cap": "server/test_reported_troubles.py prompt_and_answer_at_the_cap",
    "memory grows with requests": "server/test_soak.py five_thousand_small_requests_keep_memory_flat",
    "leaving after the first chunk": "server/test_reported_troubles.py clients_that_leave_with_the_first_chunk",
    "an aborted id cannot be used again": "engine/test_engine.py cancelling_a_waiting_request_frees_its_id",
    "places leak with those who leave": "server/test_streams.py random_disconnects_leave_nothing_behind",
    "blocks are freed while written": "engine/test_core.py blocks_of_a_request_aborted_in_a_step_hold_nothing",
    "SIGTERM cuts streams": "server/test_process.py sigterm_lets_streams_end_and_refuses_new_requests",
    "a preemption by priority crashes": "server/test_reported_troubles.py an_urgent_request_beside_a_full_server",
}
KINDS = {
    f"{name}: {kind}": where
    for name, group in {
        "speed": SPEED, "control": CONTROL, "cache": CACHE, "exactness": EXACT, "sampling": SAMPLING,
        "log-probabilities": SCORES, "metrics": METRICS, "text": TEXT, "shapes": SHAPES, "tools": TOOLS,
        "grammars": GRAMMARS, "life": LIFE,
    }.items()
    for kind, where in group.items()
}  # fmt: skip


@cache
def names_in(path: str) -> list[str]:
    tree = ast.parse((TESTS / path).read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_asked_or_cannot_be(kind: str) -> None:
    where = KINDS[kind]
    if where.startswith("cannot apply: "):
        assert len(where) > 40, "a reason, in words"
        return
    path, name = where.split()
    assert any(test.startswith(f"test_{name}") for test in names_in(path)), where
