"""Structured output of a real model, Qwen2.5-Coder-0.5B-Instruct: every answer valid, the same bits drafted or not."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import jsonschema_rs
import openai
import pytest
from pydantic import BaseModel, Field
from real_models import CODER, real_model

from surefoot.engine.config import EngineConfig
from surefoot.engine.opening import open_engine
from surefoot.kernels.registry import has_native_module
from surefoot.server.launch import assemble
from surefoot.server.settings import EngineSettings, Settings

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not has_native_module(), reason="the native module is not built")]


@pytest.fixture(scope="module")
def live(serve: Any) -> Iterator[Any]:
    path = real_model(CODER)
    config = EngineConfig(kv_memory=192 << 20, context_length=4096, max_running=8, measure_cost=False)
    opened = open_engine(path, config)
    with serve(assemble(opened, Settings(engine=EngineSettings()), path)) as live:
        yield live


@pytest.fixture
def client(live: Any) -> Iterator[openai.OpenAI]:
    with live.client() as client:
        yield client


def ask(client: openai.OpenAI, question: str, *, speculate: bool = True, **fields: Any) -> Any:
    extra = {"speculation": {"enabled": speculate}, "return_token_ids": True, **fields.pop("extra_body", {})}
    body: Any = {"temperature": 0, "max_tokens": 300, "seed": 5, **fields, "extra_body": extra}
    messages: Any = [{"role": "user", "content": question}]
    return client.chat.completions.create(model=served(client), messages=messages, **body).choices[0]


def served(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def both(client: openai.OpenAI, question: str, **fields: Any) -> Any:
    """The answer, which must be the same tokens and log-probabilities with drafts and without."""
    fields = {"logprobs": True, "top_logprobs": 2, **fields}
    drafted, plain = (ask(client, question, speculate=on, **fields) for on in (True, False))
    assert drafted.model_dump() == plain.model_dump()
    return drafted


def of(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **fields}}


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXT, WHOLE, REAL, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
SIZE = {**WHOLE, "minimum": 0, "maximum": 99}  # without limits, a small model may write digits until it is cut
SHORT = {"type": "string", "maxLength": 20}
FILM = record(title=TEXT, year=WHOLE)
FILMS = {"type": "array", "items": FILM, "minItems": 3, "maxItems": 3}


def strings(size: int) -> dict[str, Any]:
    return {"type": "array", "items": SHORT, "minItems": size, "maxItems": size}


PROMPTS: list[tuple[str, dict[str, Any]]] = [
    ("Describe a person.", record(name=SHORT, age={**WHOLE, "minimum": 0, "maximum": 120})),
    ("What is the capital of France?", record(capital=SHORT, population=WHOLE)),
    ("Classify: 'I love this phone'.", record(sentiment={"enum": ["positive", "negative", "neutral"]}, score=REAL)),
    ("Give me a book.", record(title=SHORT, author=SHORT, pages={**WHOLE, "minimum": 1, "maximum": 3000})),
    ("List three colours.", record(colours=strings(3))),
    ("A point in the plane, please.", record(x=REAL, y=REAL)),
    ("Is 17 a prime number?", record(prime=FLAG, reason={"type": "string", "maxLength": 80})),
    ("Extract the date: the meeting is on 3 May 2024.", record(date={"type": "string", "format": "date"})),
    ("Write an e-mail address.", record(email={"type": "string", "format": "email"})),
    ("A hexadecimal colour.", record(colour={"type": "string", "pattern": "^#[0-9a-f]{6}$"})),
    ("A two by two matrix.", {"type": "array", "items": {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2},
                              "minItems": 2, "maxItems": 2}),
    ("Name two films.", record(films={"type": "array", "items": FILM, "minItems": 2, "maxItems": 2})),
    ("A user account.", record(user=record(id=WHOLE, tags=strings(2)), active=FLAG)),
    ("A number or nothing.", record(value={"anyOf": [WHOLE, {"type": "null"}]})),
    ("Order two pizzas.", record(item={"const": "pizza"}, count={**WHOLE, "minimum": 1, "maximum": 9})),
    ("The temperature in Oslo.", record(celsius={**REAL, "minimum": -60, "maximum": 60})),
    ("Is this spam: 'Win money now'?", record(label={"enum": ["spam", "ham"]})),
    ("A shop's address.", record(street=SHORT, city=SHORT, zip={"type": "string", "pattern": "^[0-9]{5}$"})),
    ("A version of a program.", record(version={"type": "string", "pattern": r"^\d{1,2}\.\d{1,2}\.\d{1,2}$"})),
    ("A shape.", {"anyOf": [record(kind={"const": "circle"}, radius=SIZE), record(kind={"const": "box"}, side=SIZE)]}),
    ("A uuid.", record(id={"type": "string", "format": "uuid"})),
    ("One, two or three?", {"enum": [1, 2, 3]}),
    ("Say yes.", {"type": "string", "enum": ["yes", "no"]}),
    ("A tree of two levels.", {"$defs": {"node": record(name=SHORT, children={
        "type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/leaf"}}), "leaf": record(name=SHORT)},
        "$ref": "#/$defs/node"}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(24))
def test_every_schema_is_kept(client: openai.OpenAI, number: int) -> None:
    question, schema = PROMPTS[number]
    validator = jsonschema_rs.validator_for(schema)
    for temperature in (0, 1.2):
        answer = both(client, question, response_format=of(schema, strict=True), temperature=temperature)
        assert answer.finish_reason == "stop", answer.message.content
        validator.validate(json.loads(answer.message.content))


def test_films_with_the_ngram_drafter(live: Any, client: openai.OpenAI) -> None:
    with live.http() as http:
        http.patch("/admin/speculation", json={"type": "ngram", "governor": "off", "draft_tokens": 6})
    try:
        answer = both(client, "Name three films.", response_format=of(record(films=FILMS)))
    finally:
        with live.http() as http:
            http.patch("/admin/speculation", json={"type": "auto", "governor": "cost", "draft_tokens": None})
    films = json.loads(answer.message.content)["films"]
    assert len(films) == 3
    assert all(set(film) == {"title", "year"} and isinstance(film["year"], int) for film in films)


def test_eight_at_once(client: openai.OpenAI) -> None:
    def one(number: int) -> Any:
        schema = record(status={"const": "ok"}, items={"const": [1, 2, 3]}, request_id={"const": number})
        answer = ask(client, f"Report on request {number}.", response_format=of(schema))
        assert answer.finish_reason == "stop"
        return json.loads(answer.message.content)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(one, range(8)))
    assert answers == [{"status": "ok", "items": [1, 2, 3], "request_id": number} for number in range(8)]


def test_eight_free_schemas_at_once_are_what_they_are_alone(client: openai.OpenAI) -> None:
    def one(number: int) -> Any:
        question, schema = PROMPTS[number]
        answer = ask(client, question, response_format=of(schema), temperature=1, logprobs=True)
        return answer.model_dump()

    alone = [one(number) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(8))) == alone


def test_no_name_is_doubled(client: openai.OpenAI) -> None:
    schema = record(first_name=SHORT, last_name=SHORT)
    answer = both(client, "Extract the name: I'm John Doe.", response_format=of(schema))
    assert json.loads(answer.message.content) == {"first_name": "John", "last_name": "Doe"}


def test_preempted_once(live: Any, client: openai.OpenAI) -> None:
    fields: Any = {"response_format": of(record(films=FILMS)), "logprobs": True, "max_tokens": 120}
    calm = ask(client, "Name three films.", **fields)
    engine = live.engine
    stream = client.chat.completions.create(
        model=served(client),
        messages=[{"role": "user", "content": "Name three films."}],
        stream=True,
        temperature=0,
        seed=5,
        extra_body={"return_token_ids": True},
        **fields,
    )
    ids: list[int] = []
    preempted = False
    for chunk in stream:
        ids += (chunk.choices[0].model_extra or {}).get("token_ids") or []
        if len(ids) > 8 and not preempted:
            preempted = engine.call(preempt_first).result(10)
    assert preempted
    assert ids == calm.model_extra["token_ids"]


def preempt_first(core: Any) -> bool:
    """On the engine thread: takes the blocks of the running request, which has to be computed again."""
    running = list(core.scheduler.running)
    if running:
        core.scheduler.preempt(running[0])
    return bool(running)


@pytest.mark.parametrize("fields", [{"response_format": {"type": "json_object"}}, {"response_format": of({})}])
def test_no_endless_white_space(client: openai.OpenAI, fields: Any) -> None:
    answer = both(client, "Answer with a small JSON object about a cat: name and age only.", **fields)
    assert answer.finish_reason == "stop"
    assert not re.search(r"\s{40}", answer.message.content)
    json.loads(answer.message.content)


@pytest.mark.parametrize("pattern", ["\x00[ab]{2}", "\\x00[ab]{2}", "\\u{0}[ab]{2}"])
def test_a_leading_nul(client: openai.OpenAI, pattern: str) -> None:
    answer = both(client, "Hi", extra_body={"structured_outputs": {"regex": pattern}})
    assert re.fullmatch("\0[ab]{2}", answer.message.content)
    inside = both(client, "Hi", response_format=of(record(x={"type": "string", "pattern": f"^{pattern}$"})))
    assert re.fullmatch("\0[ab]{2}", json.loads(inside.message.content)["x"])


STRUCTURED: list[tuple[str, dict[str, Any], Callable[[str], object]]] = [
    ("A date.", {"regex": r"\d{4}-\d{2}-\d{2}"}, re.compile(r"\d{4}-\d{2}-\d{2}").fullmatch),
    ("An IPv4 address.", {"regex": r"\d{1,3}(\.\d{1,3}){3}"}, re.compile(r"\d{1,3}(\.\d{1,3}){3}").fullmatch),
    ("Sentiment of 'great!'?", {"choice": ["positive", "negative"]}, re.compile("positive|negative").fullmatch),
    ("2 + 3 * 4 as a sum of products.",
     {"grammar": 'root ::= product (" + " product)*\nproduct ::= number (" * " number)*\nnumber ::= [0-9]{1,3}'},
     re.compile(r"\d{1,3}( \* \d{1,3})*( \+ \d{1,3}( \* \d{1,3})*)*").fullmatch),
    ("A list of letters.", {"grammar": 'start: "[" LETTER ("," LETTER)* "]"\nLETTER: /[a-f]/'},
     re.compile(r"\[[a-f](,[a-f])*\]").fullmatch),
    ("Balanced brackets.", {"grammar": 'root ::= "(" root ")" | "x"'}, re.compile(r"(\(*)x(\)*)").fullmatch),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(STRUCTURED)))
def test_regex_choice_and_grammar(client: openai.OpenAI, number: int) -> None:
    question, wanted, valid = STRUCTURED[number]
    for temperature in (0, 1.5):
        answer = both(
            client, question, extra_body={"structured_outputs": wanted}, temperature=temperature, max_tokens=60
        )
        assert answer.finish_reason in ("stop", "length")
        if answer.finish_reason == "stop":
            assert valid(answer.message.content), answer.message.content


class Leaf(BaseModel):
    value: int


class Tree(BaseModel):
    name: str
    kind: Literal["leaf", "branch"]
    children: Annotated[list[Tree], Field(max_length=1)]


class Step(BaseModel):
    explanation: str
    output: str


class Solution(BaseModel):
    steps: list[Step]
    final_answer: str


MODELS: dict[type[BaseModel], str] = {
    Leaf: "The number 7 as a leaf.",
    Tree: "A tree that is only one leaf without children.",
    Solution: "Solve 8x + 7 = -23 in two short steps.",
}


@pytest.mark.parametrize("model", MODELS)
def test_parse_into_models(client: openai.OpenAI, model: type[BaseModel]) -> None:
    answer = client.chat.completions.parse(
        model=served(client),
        messages=[{"role": "user", "content": MODELS[model]}],
        response_format=model,
        temperature=0,
        max_tokens=400,
    )
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, model)


@pytest.mark.parametrize("model", MODELS)
def test_responses_parse_too(client: openai.OpenAI, model: type[BaseModel]) -> None:
    answer = client.responses.parse(
        model=served(client), input=MODELS[model], text_format=model, temperature=0, max_output_tokens=400
    )
    assert answer.status == "completed"
    assert isinstance(answer.output_parsed, model)


def test_streams_of_the_openai_client_parse_too(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=served(client),
        messages=[{"role": "user", "content": "The number 7 as a leaf."}],
        response_format=Leaf,
        temperature=0,
        max_tokens=60,
    ) as stream:
        kinds = {event.type for event in stream}
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(parsed, Leaf)
    assert "content.delta" in kinds and "content.done" in kinds


def test_choices_limits_stops_and_completions(client: openai.OpenAI) -> None:
    schema: Any = of(record(a=SHORT, b=SHORT))
    messages: Any = [{"role": "user", "content": "Invent two words."}]
    several = client.chat.completions.create(
        model=served(client), messages=messages, response_format=schema, n=3, temperature=1.3, max_tokens=80
    )
    assert all(set(json.loads(choice.message.content or "")) == {"a", "b"} for choice in several.choices)
    cut = ask(client, "Invent two words.", response_format=schema, max_tokens=4)
    assert cut.finish_reason == "length"
    stopped = ask(client, "Invent two words.", response_format=schema, stop=['"b"'])
    assert (stopped.finish_reason, '"b"' in stopped.message.content) == ("stop", False)
    minimum = ask(client, "Invent two words.", response_format=schema, extra_body={"min_tokens": 200})
    assert minimum.finish_reason == "stop" and len(minimum.model_extra["token_ids"]) < 200
    text = client.completions.create(
        model=served(client),
        prompt=["A small JSON object:\n", "A JSON list:\n"],
        temperature=0,
        max_tokens=60,
        extra_body={"structured_outputs": {"json": record(a=SIZE)}},
    )
    assert all(set(json.loads(choice.text)) == {"a"} for choice in text.choices)


def test_bad_and_good_requests_beside_each_other(live: Any, client: openai.OpenAI) -> None:
    """A schema that cannot be compiled harms nobody else."""
    good = ask(client, "Name three films.", response_format=of(record(films=FILMS)))
    stop = threading.Event()

    def annoy() -> int:
        refused = 0
        with live.http() as http:
            while not stop.is_set():
                schema = {"enum": [f"{refused} {n}" for n in range(3000)], "uniqueItems": True}
                body = {"messages": [{"role": "user", "content": "x"}], "response_format": of(schema)}
                refused += http.post("/v1/chat/completions", json=body).status_code == 400
        return refused

    with ThreadPoolExecutor(1) as pool:
        annoying = pool.submit(annoy)
        again = ask(client, "Name three films.", response_format=of(record(films=FILMS)))
        stop.set()
    assert annoying.result() >= 1
    assert again.model_dump() == good.model_dump()
