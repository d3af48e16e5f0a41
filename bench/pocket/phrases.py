"""Identifiers and filler sentences."""

from __future__ import annotations

import random

from words import ADJECTIVES, CITIES, COLOURS, NAMES, PEOPLE, PLACES, THINGS, TIMES, VERBS, WORDS

R = random.Random


def cap(text: str) -> str:
    return text[:1].upper() + text[1:]


def identifier(r: R) -> str:
    upper, lower, digits, hexa = (
        "ABCDEFGHJKLMNPQRSTUVWXYZ",
        "abcdefghijklmnopqrstuvwxyz",
        "0123456789",
        "0123456789abcdef",
    )

    def some(chars: str, n: int) -> str:
        return "".join(r.choice(chars) for _ in range(n))

    kind = r.randrange(8)
    if kind == 0:
        return "-".join(some(upper + digits, r.randint(2, 4)) for _ in range(r.randint(2, 3)))
    if kind == 1:
        return some(hexa, r.choice((6, 8, 12, 16)))
    if kind == 2:
        return f"{r.choice(WORDS)}_{r.choice(WORDS)}_{some(digits, r.randint(1, 4))}"
    if kind == 3:
        return some(upper, r.randint(2, 4)) + some(digits, r.randint(2, 5))
    if kind == 4:
        return some(lower, r.randint(4, 9))
    if kind == 5:
        return f"{r.choice(WORDS)}{cap(r.choice(WORDS))}{r.choice(('', cap(r.choice(WORDS)), some(digits, 2)))}"
    if kind == 6:
        return some(upper + lower + digits, r.randint(5, 12))
    return f"/{r.choice(WORDS)}/{r.choice(WORDS)}/{some(lower, r.randint(2, 5))}.{r.choice(('py', 'txt', 'json', 'log'))}"


def filler(r: R) -> str:
    k = r.randrange(8)
    a, p, q, v, t = (
        r.choice(ADJECTIVES),
        r.choice(PEOPLE),
        r.choice(PLACES),
        r.choice(VERBS),
        r.choice(TIMES),
    )
    if k == 0:
        return f"The {a} {p} {v} to the {q} {t}."
    if k == 1:
        return f"{r.choice(NAMES)} buys a {r.choice(THINGS)} at the {q} {t}."
    if k == 2:
        return f"A {a} {p} keeps {r.randint(2, 99)} {r.choice(WORDS)} pictures near the {q}."
    if k == 3:
        return f"In {r.choice(CITIES)} the {r.choice(WORDS)} is {r.choice(list(COLOURS.values()))} {t}."
    if k == 4:
        return f"Nobody at the {q} knows where the {a} {p} lost the {r.choice(THINGS)}."
    if k == 5:
        return (
            f"The train to {r.choice(CITIES)} leaves at {r.randint(1, 23)} and the {p} waits {t}."
        )
    if k == 6:
        return f"{r.choice(NAMES)} and {r.choice(NAMES)} carry the {r.choice(THINGS)} to the {q}."
    return f"Once the {r.choice(WORDS)} was {a}, but the {p} did not care {t}."
