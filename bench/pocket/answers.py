"""Single questions; each function returns (question, reasoning, answer)."""

from __future__ import annotations

from collections.abc import Callable

from phrases import R, cap, identifier
from prompt import dump
from words import (
    CAPITALS,
    CITIES,
    COLOURS,
    DAYS,
    LEGS,
    MONTHS,
    NAMES,
    NUMBER_WORDS,
    OPPOSITES,
    PLACES,
    SOUNDS,
    THINGS,
    WORDS,
)

Answer = tuple[str, str, str]


def ask(r: R, core: str) -> str:
    """A little variety around a question or request."""
    head = r.choice(
        (
            "",
            "",
            "",
            "",
            "Please answer: ",
            "Tell me: ",
            "Quick question: ",
            "Hi! ",
            "I want to know: ",
            "Help me: ",
        )
    )
    tail = r.choice(("", "", "", "", "", " Thanks.", " Please.", " Be short."))
    return head + core + tail


def fact(r: R) -> Answer:
    k = r.randrange(11)
    if k == 0:
        c = r.choice(list(CAPITALS))
        q = r.choice(
            (
                f"What is the capital of {c}?",
                f"Which city is the capital of {c}?",
                f"Name the capital of {c}.",
                f"Capital of {c}?",
            )
        )
        return (
            q,
            f"The country is {c}. Its capital is {CAPITALS[c]}.",
            f"The capital of {c} is {CAPITALS[c]}.",
        )
    if k == 1:
        c = r.choice(list(CAPITALS))
        return (
            r.choice(
                (
                    f"{CAPITALS[c]} is the capital of which country?",
                    f"Which country has the capital {CAPITALS[c]}?",
                )
            ),
            f"{CAPITALS[c]} is in {c}.",
            f"{CAPITALS[c]} is the capital of {c}.",
        )
    if k == 2:
        t = r.choice(list(COLOURS))
        return (
            r.choice(
                (
                    f"What colour is {t}?",
                    f"Which colour does {t} have?",
                    f"Tell me the colour of {t}.",
                )
            ),
            f"The usual colour of {t} is {COLOURS[t]}.",
            f"{cap(t)} is {COLOURS[t]}.",
        )
    if k == 3:
        a = r.choice(list(SOUNDS))
        return (
            r.choice(
                (
                    f"What sound does a {a} make?",
                    f"What does a {a} say?",
                    f"Which sound comes from a {a}?",
                )
            ),
            f"The {a} makes the sound {SOUNDS[a]}.",
            f"A {a} says {SOUNDS[a]}.",
        )
    if k == 4:
        a = r.choice(list(LEGS))
        return (
            r.choice((f"How many legs does a {a} have?", f"Number of legs of a {a}?")),
            f"A {a} has {LEGS[a]} legs.",
            f"A {a} has {LEGS[a]} legs.",
        )
    if k == 5:
        w = r.choice(list(OPPOSITES))
        o = OPPOSITES[w]
        if r.random() < 0.5:
            w, o = o, w
        return (
            r.choice(
                (
                    f"What is the opposite of {w}?",
                    f'Give the opposite of "{w}".',
                    f"Opposite of {w}?",
                )
            ),
            f"{cap(w)} and {o} are opposites.",
            f"The opposite of {w} is {o}.",
        )
    if k in (6, 7):
        seq = DAYS if k == 6 else MONTHS
        i = r.randrange(len(seq))
        step, word = r.choice(((1, "after"), (-1, "before")))
        o = seq[(i + step) % len(seq)]
        kind = "day" if k == 6 else "month"
        return (
            r.choice((f"Which {kind} comes {word} {seq[i]}?", f"What {kind} is {word} {seq[i]}?")),
            f"The {kind} {word} {seq[i]} is {o}.",
            f"{o} comes {word} {seq[i]}.",
        )
    if k == 8:
        w = r.choice(
            [w for w in WORDS if w[-1] not in "sxyfh" and not w.endswith(("fish", "sheep"))]
        )
        return (
            r.choice((f"What is the plural of {w}?", f"Give the plural of {w}.")),
            f"Add s to {w}.",
            f"The plural of {w} is {w}s.",
        )
    if k == 9:
        n = r.randrange(13)
        return (
            r.choice((f"Write the number {n} as a word.", f"How do you spell the number {n}?")),
            f"{n} is {NUMBER_WORDS[n]}.",
            f"{n} is {NUMBER_WORDS[n]}.",
        )
    w = r.choice(WORDS)
    return (
        r.choice((f"What is the first letter of {w}?", f"Which letter does {w} start with?")),
        f"{w} starts with {w[0]}.",
        f"The first letter of {w} is {w[0]}.",
    )


def arithmetic(r: R) -> Answer:
    k = r.randrange(5)
    if k <= 1:
        a, b = (
            (r.randint(0, 20), r.randint(0, 20))
            if r.random() < 0.6
            else (r.randint(0, 99), r.randint(0, 99))
        )
        x, s = a + b, f"{a} + {b}"
        think = f"{s}: tens {a // 10 + b // 10}, ones {a % 10 + b % 10}, sum {x}."
    elif k == 2:
        a, b = sorted((r.randint(0, 30), r.randint(0, 30)), reverse=True)
        x, s = a - b, f"{a} - {b}"
        think = f"{s} is {x}, because {b} + {x} = {a}."
    elif k == 3:
        a, b = r.randint(0, 10), r.randint(0, 10)
        x, s = a * b, f"{a} * {b}"
        think = f"{a} times {b} is {x}."
    else:
        a, b = r.sample(range(100), 2)
        return (
            r.choice((f"Which is bigger, {a} or {b}?", f"Is {a} or {b} larger?")),
            f"Compare {a} and {b}. {max(a, b)} is more.",
            f"{max(a, b)} is bigger.",
        )
    return (
        r.choice(
            (f"What is {s}?", f"Compute {s}.", f"{s} = ?", f"How much is {s}?", f"Calculate {s}.")
        ),
        think,
        f"{s} = {x}",
    )


def listing(r: R) -> Answer:
    k = r.randrange(6)
    if k == 0:
        a = r.randint(0, 30)
        b = a + r.randint(2, 12)
        return (
            r.choice((f"Count from {a} to {b}.", f"Please count from {a} up to {b}.")),
            f"Start at {a} and stop at {b}.",
            ", ".join(map(str, range(a, b + 1))),
        )
    if k == 1:
        a = r.randint(4, 20)
        b = a - r.randint(2, min(a, 10))
        return (
            r.choice((f"Count down from {a} to {b}.", f"Count backwards from {a} to {b}.")),
            f"Start at {a}, go down, stop at {b}.",
            ", ".join(map(str, range(a, b - 1, -1))),
        )
    if k == 2:
        xs = r.sample(range(1, 60), r.randint(3, 6))
        q = ", ".join(map(str, xs))
        return (
            r.choice(
                (f"Sort these numbers: {q}", f"Sort {q} from small to large.", f"Put in order: {q}")
            ),
            f"Smallest is {min(xs)}, largest is {max(xs)}.",
            ", ".join(map(str, sorted(xs))),
        )
    if k == 3:
        ws = r.sample(WORDS, r.randint(3, 6))
        q = ", ".join(ws)
        return (
            r.choice(
                (f"Reverse this list: {q}", f"Write this list backwards: {q}", f"Reverse: {q}")
            ),
            f"The last one is {ws[-1]}, the first one is {ws[0]}.",
            ", ".join(ws[::-1]),
        )
    if k == 4:
        xs = r.sample(range(1, 100), r.randint(3, 6))
        q = ", ".join(map(str, xs))
        if r.random() < 0.5:
            return f"What is the largest of {q}?", f"Look at {q}.", f"The largest is {max(xs)}."
        return f"What is the smallest of {q}?", f"Look at {q}.", f"The smallest is {min(xs)}."
    ws = r.sample(WORDS, r.randint(3, 6))
    n = r.randrange(len(ws))
    order = ("first", "second", "third", "fourth", "fifth", "sixth")[n]
    return (
        f"Which is the {order} word in: {', '.join(ws)}?",
        f"Count to {n + 1}.",
        f"The {order} word is {ws[n]}.",
    )


def echo(r: R) -> Answer:
    s = identifier(r)
    if r.random() < 0.15:
        s += " " + identifier(r)
    q = r.choice(
        (
            f"Repeat exactly: {s}",
            f"Echo {s}",
            f"Say this back to me: {s}",
            f"Copy this identifier: {s}",
            f"Write {s} again.",
            f"Please repeat {s}",
            f"Return the string {s}",
        )
    )
    return q, f"I copy {s}.", s


def spelling(r: R) -> Answer:
    w = r.choice(WORDS)
    return (
        r.choice((f"Spell {w}.", f"Spell the word {w}.", f"How do you spell {w}?")),
        f"The letters of {w}.",
        "-".join(w),
    )


def about(r: R) -> Answer:
    return r.choice(
        (
            (
                r.choice(
                    (
                        "Who are you?",
                        "What are you?",
                        "Introduce yourself.",
                        "Tell me about yourself.",
                        "What is your name?",
                        "Hello, who are you?",
                    )
                ),
                "The user asks who I am.",
                "I am Pocket, a very small model with the DeepSeek-V4.1 architecture.",
            ),
            (
                r.choice(
                    ("How big are you?", "How many parameters do you have?", "What size are you?")
                ),
                "The user asks about my size.",
                "I am tiny: about ten million weights. The real model is far larger.",
            ),
            (
                r.choice(
                    ("What can you do?", "How can you help me?", "What are you good at?", "Help")
                ),
                "The user asks what I can do.",
                "I can answer short questions, count, copy identifiers, find codes in long texts and call tools.",
            ),
            (
                r.choice(("Are you human?", "Are you a person?", "Are you real?")),
                "The user asks if I am human.",
                "No, I am a small language model.",
            ),
            (
                r.choice(("Who made you?", "Where do you come from?", "How were you trained?")),
                "The user asks about my origin.",
                "I was trained in minutes on synthetic text, to test an inference engine.",
            ),
            (
                r.choice(
                    ("Hello", "Hi", "Hello!", "Hi there", "Hey", "Good morning", "Good evening")
                ),
                "The user greets me.",
                "Hello! How can I help you?",
            ),
            (
                r.choice(("Thank you", "Thanks!", "Thanks a lot", "Thank you very much.")),
                "The user thanks me.",
                "You are welcome!",
            ),
            (
                r.choice(("Bye", "Goodbye", "See you", "Good night")),
                "The user leaves.",
                "Goodbye! Have a nice day.",
            ),
            (
                r.choice(("How are you?", "How do you do?", "Are you well?")),
                "The user asks how I feel.",
                "I am fine, thank you. What can I do for you?",
            ),
            (
                r.choice(("Tell me a joke.", "Do you know a joke?", "Make me laugh.")),
                "A short joke.",
                "Why did the cat sit on the computer? To watch the mouse.",
            ),
        )
    )


def story(r: R) -> Answer:
    a, b = r.sample(sorted(SOUNDS), 2)
    n, p, t = r.choice(NAMES), r.choice(PLACES), r.choice(THINGS)
    q = r.choice(
        (
            f"Tell me a story about a {a} and a {b} at the {p}.",
            f"Write a short story with a {a}, a {b} and the {p}.",
        )
    )
    return (
        q + f" Use the name {n} and a {t}.",
        f"A story about {n}, the {a}, and a {b}.",
        (
            f"Once upon a time there was a {a} named {n}. {n} lived near the {p}. One day {n} met a {b} who had lost a {t}. "
            f'"{cap(SOUNDS[a])}!" said {n}. "{cap(SOUNDS[b])}!" said the {b}. Together they looked for the {t} and found it at the {p}. '
            f"From that day the {a} and the {b} were friends."
        ),
    )


def code(r: R) -> Answer:
    f = f"{r.choice(('get', 'make', 'do', 'run', 'my', 'calc'))}_{r.choice(WORDS)}"
    a, b = r.sample("abcdefghkmnpqxyz", 2)
    what, expr, args = r.choice(
        (
            ("the sum of", f"{a} + {b}", f"{a}, {b}"),
            ("the product of", f"{a} * {b}", f"{a}, {b}"),
            ("the difference of", f"{a} - {b}", f"{a}, {b}"),
            ("the larger of", f"max({a}, {b})", f"{a}, {b}"),
            ("the smaller of", f"min({a}, {b})", f"{a}, {b}"),
        )
    )
    return (
        f"Write a Python function {f} that returns {what} {a} and {b}.",
        f"The function {f} takes {a} and {b}.",
        f"```python\ndef {f}({args}):\n    return {expr}\n```",
    )


def json_answer(r: R) -> Answer:
    n, c, age = r.choice(NAMES), r.choice(CITIES), r.randint(1, 99)
    k = r.randrange(3)
    if k == 0:
        return (
            r.choice(
                (
                    f"{n} is {age} years old and lives in {c}. Answer in JSON.",
                    f"Give JSON with name, age and city: {n}, {age}, {c}.",
                )
            ),
            f"The fields are {n}, {age}, {c}.",
            dump({"name": n, "age": age, "city": c}),
        )
    if k == 1:
        ws = r.sample(WORDS, r.randint(2, 4))
        return f"Make a JSON list of: {', '.join(ws)}", f"There are {len(ws)} items.", dump(ws)
    s = identifier(r)
    return (
        f"Make JSON with the id {s} and the count {age}.",
        f"id {s}, count {age}.",
        dump({"id": s, "count": age}),
    )


SIMPLE: dict[str, tuple[Callable[[R], Answer], float]] = {
    "fact": (fact, 2.0),
    "arithmetic": (arithmetic, 1.6),
    "list": (listing, 1.6),
    "echo": (echo, 2.0),
    "spell": (spelling, 0.4),
    "about": (about, 0.9),
    "story": (story, 0.7),
    "code": (code, 0.4),
    "json": (json_answer, 0.6),
}
