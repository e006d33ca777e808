"""Speculative decoding: guess the next tokens, verify them in one step, keep what the plain draw would have given.

contract.py   what target, speculator and draft head promise each other
registry.py   names of algorithms
session.py    the loop around a step, for all of them; arming.py who is armed, armed.py one armed request
ngram.py      the weight-free drafter; ngram_index.py is its index in Python
governor/     decides, step by step, whether and how far drafting pays
policy.py     what the operator and a request ask for
replay.py     runs any policy over recorded traces
"""
