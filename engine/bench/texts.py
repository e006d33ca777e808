"""What benchmarks of speculation ask of a model: user turns of six kinds, by how predictable their answers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NOTICE = (
    "The tide gate on the eastern pier opens at 05:40 and closes at 21:15 from April to September. Between October and "
    "March it opens one hour later and closes two hours earlier. Boats longer than 12 metres must call the harbour "
    "office on channel 14 before they enter, and must not moor at berths 3, 7 and 9. Fuel is sold at berth 1 on "
    "weekdays, and on Saturdays until noon. The crane lifts up to 8 tonnes; it is booked a day ahead, in person, and "
    "paid in advance. Lost property is kept for ninety days in the office behind the fish market."
)
CODE = """class Ledger:
    def __init__(self, owner):
        self.owner = owner
        self.entries = []
        self.total = 0

    def deposit(self, amount, note=""):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.entries.append(("deposit", amount, note))
        self.total = self.total + amount

    def withdraw(self, amount, note=""):
        if amount <= 0:
            raise ValueError("amount must be positive")
        if amount > self.total:
            raise ValueError("not enough money")
        self.entries.append(("withdraw", amount, note))
        self.total = self.total - amount
"""
RECORDS = (
    '[{"id": 1, "name": "Ada", "city": "Bergen", "active": true}, {"id": 2, "name": "Bo", "city": "Turku", "active": '
    'false}, {"id": 3, "name": "Cleo", "city": "Porto", "active": true}, {"id": 4, "name": "Dan", "city": "Ghent", '
    '"active": true}, {"id": 5, "name": "Eva", "city": "Brno", "active": false}]'
)

TURNS: Mapping[str, Sequence[str]] = {
    "one-word": (
        "Answer with one word only: what colour is a ripe banana?",
        "Answer with one word only: which planet do we live on?",
    ),
    "prose": (
        "Write a story about a lighthouse keeper who finds a letter in a bottle.",
        "Explain why the sky is blue to somebody who has never seen it.",
    ),
    "code": (
        "Write a Python function that merges two sorted lists, with a docstring and three tests.",
        "Write a small HTML page with a form that has five labelled text fields and a button.",
    ),
    "quote": (
        f"Repeat the following notice word for word, and nothing else:\n\n{NOTICE}",
        f"Here is a notice:\n\n{NOTICE}\n\nCopy the notice exactly as it stands.",
    ),
    "edit": (
        f"Rename the method withdraw to take_out, change nothing else, print the whole file.\n\n```python\n{CODE}```",
        f"Add type annotations to every parameter and print the whole file again.\n\n```python\n{CODE}```",
    ),
    "json": (
        f"Here are records:\n{RECORDS}\nPrint the same list again with the key active removed, as JSON, nothing else.",
        "List the numbers from 1 to 15 as a JSON array of objects with the keys number, square and even. Only JSON.",
    ),
}
