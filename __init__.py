"""Surefoot: an OpenAI-compatible inference server for GGUF models whose speculation is safe to leave on."""

__version__ = "0.1.0"
