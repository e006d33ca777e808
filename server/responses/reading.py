"""From the outputs of a generation to what its text turns out to be, with the draws of the tokens behind each piece.

Draws are handed on token by token: the text is read in the pieces that single tokens make of it, whatever a step
brought, so that the same answer has its log-probabilities at the same places however it was cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ...engine.request import Draw, Output
from ...models.tokenizer import StreamDecoder
from ..message_events import CallArguments, Content, Event, Reasoning
from ..message_parser import MessageReader

Found = tuple[Event, list[Draw]]


class AnswerReader:
    """Reads one answer and counts the tokens of its reasoning."""

    def __init__(self, reader: MessageReader, decoder: StreamDecoder, *, with_draws: bool) -> None:
        """`decoder`: as the one that makes the answer's text."""
        self._reader = reader
        self._decoder = decoder
        self._with_draws = with_draws
        self._end = 0  # characters up to the end of the last token
        self._starts: list[int] = []  # of the tokens that may belong to the reasoning
        self._num_reasoning = 0 if reader.reasoning_end == 0 else None  # None: some of it may still come
        self._length = 0  # characters that have come
        self._text = ""  # those of them that are not read yet: their tokens are not complete
        self._read_upto = 0
        self._unread: deque[tuple[int, int, Draw]] = deque()  # start, end and draw of tokens whose text is to come
        self._held: list[tuple[int, Draw]] = []  # start and draw of tokens that no event has shown yet

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of the reasoning, its markers included."""
        return len(self._starts) if self._num_reasoning is None else self._num_reasoning

    def feed(self, output: Output) -> list[Found]:
        """What a step's output completes."""
        self._add_tokens(output)
        self._length += len(output.text)
        found: list[Found] = []
        if self._with_draws:
            self._text += output.text
            while self._unread and self._unread[0][1] <= self._read_upto + len(self._text):
                self._read_token(found)
        else:
            _extend(found, self._reader.feed(output.text), [])
        if output.finish is not None:
            while self._unread:  # a stop string may cut the text within the last tokens
                self._read_token(found)
            _extend(found, self._reader.feed(self._text) + self._reader.end(), self._draws_of_content())
        self._count_reasoning()
        return found

    def _add_tokens(self, output: Output) -> None:
        if not self._with_draws and self._num_reasoning is not None:
            return  # nobody asks where they lie
        for index, token_id in enumerate(output.token_ids):
            start = self._end
            self._end += len(self._decoder.take(token_id))
            if self._num_reasoning is None:
                self._starts.append(start)
            if self._with_draws:
                self._unread.append((start, self._end, output.draws[index]))

    def _read_token(self, found: list[Found]) -> None:
        start, end, draw = self._unread.popleft()
        length = end - self._read_upto
        piece, self._text = self._text[:length], self._text[length:]
        self._read_upto = end
        self._held.append((start, draw))
        events = self._reader.feed(piece)
        if events:
            _extend(found, events, self._draws_of_content())
            self._held.clear()

    def _draws_of_content(self) -> list[Draw]:
        """The draws that are held and are not the reasoning's, nor that of a last token without a text."""
        begin = self._reader.reasoning_end
        return [] if begin is None else [draw for start, draw in self._held if begin <= start < self._length]

    def _count_reasoning(self) -> None:
        end = self._reader.reasoning_end
        if self._num_reasoning is None and end is not None:
            self._num_reasoning = sum(start < end for start in self._starts)
            self._starts.clear()


def _extend(found: list[Found], events: Sequence[Event], draws: list[Draw]) -> None:
    """Adds events, the first with the draws if it is content; neighbours of one kind become one."""
    for index, event in enumerate(events):
        mine = draws if index == 0 and isinstance(event, Content) else []
        last = found[-1] if found else None
        match last, event:
            case (Content(first), before), Content(second):
                found[-1] = (Content(first + second), before + mine)
            case (Reasoning(first), _), Reasoning(second):
                found[-1] = (Reasoning(first + second), [])
            case (CallArguments(number, first), _), CallArguments(_, second):
                found[-1] = (CallArguments(number, first + second), [])
            case _:
                found.append((event, mine))
