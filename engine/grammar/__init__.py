"""Answers that must match a grammar: constraints as values, compiled grammars, and the state of one answer."""
