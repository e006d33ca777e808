"""The printable stand-ins that byte-level vocabularies use for bytes.

Printable Latin-1 characters stand for themselves; the other 68 bytes take the characters from U+0100 on, in order.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import count

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def _stand_ins() -> dict[str, int]:
    fresh = count(0x100)
    printable = frozenset(_PRINTABLE)
    return {chr(byte if byte in printable else next(fresh)): byte for byte in range(256)}


_BYTE_OF = _stand_ins()


def text_to_bytes(text: str) -> bytes:
    """The bytes that a byte-level token stands for; a text with a character outside the alphabet stands for itself."""
    try:
        return bytes([_BYTE_OF[character] for character in text])
    except KeyError:
        return text.encode()


def missing_bytes(tokens: Container[str]) -> list[int]:
    """Bytes of UTF-8 text for which a vocabulary has no token, so that encoding would lose them."""
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    return [byte for text, byte in _BYTE_OF.items() if text not in tokens and byte not in never_in_utf8]
