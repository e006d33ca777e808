"""Text to token ids and back, from what the model file itself says. Knows no requests and no weights."""

from .loading import load_tokenizer
from .stream import StreamDecoder, WholeTexts
from .tokenizer import Tokenizer

__all__ = ["StreamDecoder", "Tokenizer", "WholeTexts", "load_tokenizer"]
