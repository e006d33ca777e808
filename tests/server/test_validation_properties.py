"""Whatever a client sends: an answer or OpenAI's error, never a 5xx; and no known constraint is ever dropped."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surefoot.kernels.errors import RequestError
from surefoot.server.schema.chat import ChatRequest
from surefoot.server.schema.completions import CompletionRequest
from surefoot.server.schema.embeddings import EmbeddingRequest
from surefoot.server.schema.fields import REFUSED, sift
from surefoot.server.schema.responses import ResponseRequest
from surefoot.server.schema.sampling import choice_seed

SCHEMAS = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingRequest,
    "/v1/responses": ResponseRequest,
}
NAMES = sorted({*(name for made in SCHEMAS.values() for name in made.model_fields), *REFUSED, "anything", "x" * 100})
VALID = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
}

STORED = {"store"}  # refused where nothing is stored

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["user", "system", "text", "auto", "function", "input_text", "", "\u0000", "\ud83c", "a" * 5000]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["role", "content", "type", "text", "5", "format", "effort", "name", "call_id"]),
                st.text(max_size=5),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
bodies = st.dictionaries(st.sampled_from(NAMES), values, max_size=5)


@pytest.fixture(scope="module")
def http(plain: Any) -> Any:
    with plain.http() as client:
        yield client


def judge(response: httpx.Response) -> None:
    """A stream, an answer, or an error in OpenAI's shape."""
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert 0 < len(error["message"]) <= 1000
        assert "Traceback" not in response.text


@pytest.mark.parametrize("path", sorted(SCHEMAS))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies, valid=st.booleans())
def test_any_body_gets_an_answer_or_an_error(http: httpx.Client, path: str, body: dict[str, Any], valid: bool) -> None:
    if valid:  # the required parts are there and right, so that the rest decides
        body = VALID[path] | body
    data = json.dumps(body).encode()
    response = http.post(path, content=data, headers={"Content-Type": "application/json"})
    judge(response)
    refused = [name for name in body if name in REFUSED and name not in SCHEMAS[path].model_fields]
    if response.status_code == 200:
        assert not sift({name: body[name] for name in refused}, ())


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=200),
    path=st.sampled_from(["/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/tokenize", "/detokenize"]),
)
def test_any_bytes_get_an_error(http: httpx.Client, data: bytes, path: str) -> None:
    judge(http.post(path, content=data, headers={"Content-Type": "application/json"}))


@pytest.mark.parametrize("schema", SCHEMAS.values())
def test_the_table_and_the_schemas_do_not_overlap_by_accident(schema: Any) -> None:
    siblings = {"echo", "prompt_logprobs", "suffix", "best_of", "top_logprobs", "max_completion_tokens"}
    siblings |= {"tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "include_reasoning"}
    siblings |= {"response_format", "structured_outputs", "json_schema", "grammar"}
    siblings |= {"thinking_token_budget", "thinking_budget_tokens", "reasoning_budget", "add_special_tokens"}
    siblings |= {"messages", "prompt", "input", "n", "logprobs", "max_tokens", "max_output_tokens", "instructions"}
    siblings |= {"previous_response_id", "include", "text", "reasoning", "truncation"}
    assert set(schema.model_fields) & set(REFUSED) <= siblings | (STORED if schema is ResponseRequest else set())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_every_field_of_the_table_passes_at_its_defaults(name: str) -> None:
    neutral = [value for value in REFUSED[name] if type(value) is not object]
    for value in neutral:
        assert sift({name: value}, ()) == []
    if len(neutral) == len(REFUSED[name]):
        with pytest.raises(RequestError) as caught:
            sift({name: "surely not a default"}, ())
        assert caught.value.param == name


def test_true_is_not_one() -> None:
    with pytest.raises(RequestError):
        sift({"length_penalty": True}, ())
    with pytest.raises(RequestError):
        sift({"store": 0}, ())


@given(st.integers(0, 2**64 - 1), st.integers(1, 127))
def test_choice_seeds(seed: int, choice: int) -> None:
    """The first keeps the seed; the others are 64-bit hashes that no neighbouring seed's choices meet."""
    assert choice_seed(seed, 0) == seed
    derived = choice_seed(seed, choice)
    assert 0 <= derived < 2**64
    assert derived not in (seed, (seed + choice) % 2**64, choice_seed((seed + 1) % 2**64, choice))
