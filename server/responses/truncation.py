"""`truncation: "auto"`: which messages a conversation that is too long goes without. Knows no tokens.

The oldest go first. Instructions stay, wherever they stand; a call and what it gave go together; and so that what is
left is still a conversation that templates can show, an exchange (a user's message and what followed it) goes whole
while there is a later one. Of the last exchange the question stays, and its newest step:

    system | user assistant | user call output assistant | user call output call output call output
    stays    goes first       goes second                  stays  third       fourth      stays
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..schema.chat import Message

_INSTRUCTIONS = ("system", "developer")

Indices = list[int]


def shortened(messages: Sequence[Message], fits: Callable[[Sequence[Message]], bool]) -> Sequence[Message]:
    """The messages without as many of the oldest as it takes to fit; without all that may go, if even that does not.

    `fits` is asked about a dozen times at most.
    """
    if fits(messages):
        return messages
    order = dropping_order(messages)
    too_few, enough = 0, len(order)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if fits(_without(messages, order[:middle])):
            enough = middle
        else:
            too_few = middle
    return _without(messages, order[:enough])


def dropping_order(messages: Sequence[Message]) -> list[Indices]:
    """What may go, in the order in which it goes: indices of messages that go together."""
    free = [index for index, message in enumerate(messages) if message.role not in _INSTRUCTIONS]
    exchanges = _split(free, [i for i in _borders(messages, free) if messages[i].role == "user"])
    if not exchanges:
        return []
    *earlier, last = exchanges
    steps = _split(last, _borders(messages, last))
    begins_with_question = messages[steps[0][0]].role == "user"
    return earlier + steps[1 if begins_with_question else 0 : -1]


def _borders(messages: Sequence[Message], indices: Indices) -> Iterable[int]:
    """Indices before which no call waits for what it gives."""
    outputs = {messages[i].tool_call_id: i for i in indices if messages[i].tool_call_id is not None}
    reach = -1
    for i in indices:
        if reach < i:
            yield i
        for call in messages[i].tool_calls or ():
            reach = max(reach, outputs.get(call.id, -1))


def _split(indices: Indices, borders: Iterable[int]) -> list[Indices]:
    """Runs of indices, each from a border to before the next."""
    starts = set(borders)
    runs: list[Indices] = []
    for i in indices:
        if i in starts or not runs:
            runs.append([])
        runs[-1].append(i)
    return runs


def _without(messages: Sequence[Message], dropped: Sequence[Indices]) -> list[Message]:
    gone = {i for indices in dropped for i in indices}
    return [message for i, message in enumerate(messages) if i not in gone]
