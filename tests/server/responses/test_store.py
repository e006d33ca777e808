"""The store: what it keeps, for whom, and how much."""

from __future__ import annotations

import random
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from surefoot.server.responses.store import Shelf, Stored

KEYS = ("key-one", "key-two")


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hi", **fields}


def prompt_of(live: Any) -> str:
    return bytes(live.engine.submissions[-1].prompt_ids).decode()


# Over HTTP


def test_a_chain_says_again_what_was_said(start: Any) -> None:
    live = start()
    with live.client() as client:
        first = client.responses.create(**ask(input="a", instructions="one"))
        second = client.responses.create(**ask(input="b", previous_response_id=first.id))
        assert (
            prompt_of(live) == "user:a\nassistant:Hello, world!\nuser:b\nassistant:"
        )  # instructions are not carried on
        client.responses.create(**ask(input="c", previous_response_id=second.id, instructions="three", stream=False))
        whole = "system:three\nuser:a\nassistant:Hello, world!\nuser:b\nassistant:Hello, world!\nuser:c\nassistant:"
        assert prompt_of(live) == whole
        client.responses.create(**ask(input="d", previous_response_id=first.id))  # a branch
        assert prompt_of(live) == "user:a\nassistant:Hello, world!\nuser:d\nassistant:"
        assert second.previous_response_id == first.id


def test_streamed_and_cut_responses_can_be_gone_on_from(start: Any) -> None:
    live = start()
    with live.client() as client:
        with client.responses.stream(**ask()) as stream:
            streamed = stream.get_final_response()
        cut = client.responses.create(**ask(max_output_tokens=4))
        client.responses.create(**ask(input="go on", previous_response_id=streamed.id))
        assert "assistant:Hello, world!\nuser:go on" in prompt_of(live)
        client.responses.create(**ask(input="go on", previous_response_id=cut.id))
        assert "assistant:Hell\nuser:go on" in prompt_of(live)


def test_retrieve_and_delete(start: Any) -> None:
    live = start()
    with live.client() as client:
        first = client.responses.create(**ask())
        second = client.responses.create(**ask(previous_response_id=first.id))
        assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
        client.responses.delete(first.id)
        for gone in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                gone(first.id)
        third = client.responses.create(**ask(previous_response_id=second.id))  # it keeps what it was shown
        assert prompt_of(live).count("Hello, world!") == 2
        for stored in (second, third):
            client.responses.delete(stored.id)
    assert live.service.responses.shelf(live.service.gate._anyone).num_bytes == 0


def test_what_is_not_to_be_stored_is_not(start: Any) -> None:
    live = start()
    with live.client() as client:
        answer = client.responses.create(**ask(store=False))
        assert answer.store is False
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(answer.id)
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(**ask(previous_response_id=answer.id))
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
    assert len(live.engine.submissions) == 1


def test_a_server_may_store_nothing(start: Any) -> None:
    live = start(stored_bytes=0)
    with live.client() as client:
        assert client.responses.create(**ask()).store is False
        with pytest.raises(openai.BadRequestError, match="stores no responses"):
            client.responses.create(**ask(store=True))


def test_the_response_of_another_key_is_not_there(start: Any) -> None:
    live = start(api_keys=KEYS)
    with live.client(KEYS[0]) as mine, live.client(KEYS[1]) as other:
        answer = mine.responses.create(**ask())
        message = answer.output[0].id
        for client in (other, live.client("wrong")):
            with pytest.raises((openai.NotFoundError, openai.AuthenticationError)):
                client.responses.retrieve(answer.id)
        for bad in (
            lambda: other.responses.delete(answer.id),
            lambda: other.responses.cancel(answer.id),
            lambda: other.responses.input_items.list(answer.id),
            lambda: other.responses.create(**ask(previous_response_id=answer.id)),
            lambda: other.responses.create(**ask(input=[{"type": "item_reference", "id": message}])),
        ):
            with pytest.raises(openai.NotFoundError):
                bad()
        assert mine.responses.retrieve(answer.id).id == answer.id
        salts = {submission.cache_salt for submission in live.engine.submissions}
        other.responses.create(**ask())
        assert live.engine.submissions[-1].cache_salt not in salts


def test_one_key_cannot_push_out_the_responses_of_another(start: Any) -> None:
    live = start(api_keys=KEYS, stored_responses=4)
    with live.client(KEYS[0]) as mine, live.client(KEYS[1]) as other:
        answer = mine.responses.create(**ask())
        flood = [other.responses.create(**ask()).id for _ in range(5)]
        assert mine.responses.retrieve(answer.id).id == answer.id
        with pytest.raises(openai.NotFoundError):
            other.responses.retrieve(flood[2])
        assert other.responses.retrieve(flood[3]).id == flood[3]


def test_a_response_cannot_be_cancelled_when_it_is_over(start: Any) -> None:
    with start().client() as client:
        answer = client.responses.create(**ask())
        with pytest.raises(openai.BadRequestError, match="background"):
            client.responses.cancel(answer.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.cancel("resp_nope")


def test_input_items_come_in_pages(start: Any) -> None:
    items: Any = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"id": "msg_mine", "role": "user", "content": "c"},
    ]
    live = start()
    with live.client() as client:
        first = client.responses.create(**ask(input=items, instructions="not an item"))
        second = client.responses.create(**ask(input="d", previous_response_id=first.id))
        texts = [item.content[0].text for item in client.responses.input_items.list(second.id, limit=2)]
        page = client.responses.input_items.list(second.id, order="asc", limit=2)
        rest = client.responses.input_items.list(second.id, order="asc", after=page.last_id)
    assert texts == ["d", "Hello, world!", "c", "b", "a"]  # the client asks for page after page
    assert (page.has_more, rest.has_more) == (True, False)
    assert [item.content[0].text for item in rest.data] == ["c", "Hello, world!", "d"]
    assert rest.data[0].id == "msg_mine"
    assert [item.type for item in page.data] == ["message", "message"]
    assert [item.content[0].type for item in page.data] == ["input_text", "output_text"]


@pytest.mark.parametrize(
    ("query", "param"),
    [("limit=0", "limit"), ("limit=101", "limit"), ("limit=²", "limit"), ("order=up", "order"), ("after=x", "after")],
)
def test_queries_that_make_no_sense(start: Any, query: str, param: str) -> None:
    with start().http() as http:
        name = http.post("/v1/responses", json=ask()).json()["id"]
        response = http.get(f"/v1/responses/{name}/input_items?{query}")
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert http.get(f"/v1/responses/{name}?stream=true").json()["error"]["param"] == "stream"
        assert http.get(f"/v1/responses/{name}?stream=false").status_code == 200


def test_references_to_items(start: Any) -> None:
    live = start()
    with live.client() as client:
        first = client.responses.create(**ask(input=[{"id": "msg_mine", "role": "user", "content": "a"}]))
        items: Any = [
            {"type": "item_reference", "id": "msg_mine"},
            {"id": first.output[0].id},
            {"role": "user", "content": "b"},
        ]
        client.responses.create(**ask(input=items))
        assert prompt_of(live) == "user:a\nassistant:Hello, world!\nuser:b\nassistant:"
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(**ask(input=[{"type": "item_reference", "id": "msg_nope"}]))
    assert (caught.value.param, caught.value.code) == ("input", "item_not_found")


def test_the_state_says_how_much_is_kept(start: Any) -> None:
    with start().http() as http:
        for kept in (0, 1):
            state = http.get("/admin/state").json()["server"]
            assert state["stored_responses"] == kept
            assert (state["stored_bytes"] > 1000) == bool(kept)
            http.post("/v1/responses", json=ask())


# The shelf


def stored(name: str, size: int, previous: Stored | None = None) -> Stored:
    items = to_json([{"id": f"msg_{name}", "type": "message", "role": "user", "content": "x" * size}])
    return Stored(name, b"{}", b"[]", items, (f"msg_{name}",), previous)


def test_the_longest_unused_goes_first() -> None:
    shelf = Shelf(10**6, 3)
    for name in "abc":
        shelf.put(stored(name, 10))
    assert shelf.get("a") is not None
    shelf.put(stored("d", 10))
    assert [name for name in "abcd" if shelf.get(name) is not None] == ["a", "c", "d"]


def test_use_of_a_chain_is_use_of_all_of_it() -> None:
    shelf = Shelf(10**6, 3)
    shelf.put(first := stored("a", 10))
    shelf.put(stored("x", 10))
    shelf.put(stored("b", 10, first))
    assert shelf.get("b") is not None
    shelf.put(stored("c", 10))
    assert [name for name in "abcx" if shelf.get(name) is not None] == ["a", "b", "c"]


def test_bytes_bound_it_and_shared_history_counts_once() -> None:
    shelf = Shelf(200_000, 1000)
    last = None
    for number in range(100):
        last = stored(f"r{number}", 500, last)
        shelf.put(last)
    assert len(shelf) == 100
    assert shelf.num_bytes < 100 * 1700
    shelf.put(stored("big", 150_000))
    assert shelf.get("big") is not None
    assert shelf.num_bytes <= 200_000
    assert shelf.get("r99") is None  # its history had to go with it
    assert shelf.item("msg_r99") is None


def test_what_is_too_large_pushes_nobody_out() -> None:
    shelf = Shelf(50_000, 10)
    shelf.put(stored("a", 10))
    shelf.put(stored("b", 60_000))
    assert shelf.get("b") is None
    assert shelf.get("a") is not None


def test_history_that_went_while_a_response_was_computed_counts_again() -> None:
    shelf = Shelf(10**6, 10)
    shelf.put(first := stored("a", 1000))
    shelf.remove("a")
    assert shelf.num_bytes == 0
    shelf.put(second := stored("b", 10, first))
    assert shelf.num_bytes == first.size + second.size
    assert shelf.get("a") is None
    shelf.remove("b")
    assert shelf.num_bytes == 0


@given(seed=st.integers(0, 2**32), max_count=st.integers(1, 8), max_bytes=st.integers(3_000, 30_000))
def test_the_bounds_hold_and_nothing_leaks(seed: int, max_count: int, max_bytes: int) -> None:
    chance = random.Random(seed)
    shelf, made = Shelf(max_bytes, max_count), []
    for number in range(40):
        match chance.randrange(4):
            case 0 | 1:
                previous = chance.choice([None, *made])
                made.append(stored(f"r{number}", chance.randrange(4000), previous))
                shelf.put(made[-1])
            case 2 if made:
                shelf.remove(chance.choice(made).id)
            case _ if made:
                name = chance.choice(made).id
                found = shelf.get(name)
                assert (found is None) == (shelf.item(f"msg_{name}") is None)
            case _:
                pass
        alive = {link.id: link for one in made if one.is_listed for link in one.chain()}
        assert shelf.num_bytes == sum(link.size for link in alive.values()) <= max_bytes
        assert len(shelf) == sum(one.is_listed for one in made) <= max_count
    for one in made:
        shelf.remove(one.id)
    assert (shelf.num_bytes, len(shelf)) == (0, 0)
