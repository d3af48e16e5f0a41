"""Tasks: functions from a random generator to a conversation, and tables of their shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from answers import SIMPLE, about, ask, echo, fact
from phrases import R, cap, filler, identifier
from prompt import Chat, Turn, dump
from words import CITIES, NAMES, PEOPLE, PROJECTS, SKIES, WORDS

Task = Callable[[R], Chat]


SYSTEMS = (
    "You are a helpful assistant.",
    "You are Pocket, a helpful assistant.",
    "Answer briefly.",
    "You are a small model. Be precise.",
    "Be kind and short.",
)


def settings(r: R) -> dict[str, Any]:
    return {
        "thinking": r.random() < 0.4,
        "effort": r.choice((50, 75, 75, 75, 100, r.randint(1, 100))),
        "system": r.choice(SYSTEMS) if r.random() < 0.35 else None,
    }


def simple(name: str) -> Task:
    make = SIMPLE[name][0]

    def task(r: R) -> Chat:
        q, think, a = make(r)
        s = settings(r)
        schema = {"type": "json_object"} if name == "json" and r.random() < 0.3 else None
        return Chat(
            name,
            [
                Turn(
                    "user",
                    ask(r, q) if name not in ("echo", "about", "story", "code", "json") else q,
                ),
                Turn("assistant", a, think),
            ],
            schema=schema,
            **s,
        )

    return task


def multi(r: R) -> Chat:
    names = list(SIMPLE)
    weights = [SIMPLE[n][1] for n in names]
    turns: list[Turn] = []
    s = settings(r)
    memory = r.choice(NAMES) if r.random() < 0.5 else None
    if memory:
        turns += [
            Turn(
                "user",
                r.choice((f"My name is {memory}.", f"Hi, I am {memory}.", f"Call me {memory}.")),
            ),
            Turn("assistant", f"Nice to meet you, {memory}!", f"The user is {memory}."),
        ]
    for name in r.choices(names, weights, k=r.randint(1, 3)):
        q, think, a = SIMPLE[name][0](r)
        turns += [Turn("user", q), Turn("assistant", a, think)]
    if memory:
        turns += [
            Turn("user", r.choice(("What is my name?", "Do you remember my name?", "Who am I?"))),
            Turn("assistant", f"Your name is {memory}.", f"The user said the name {memory}."),
        ]
    return Chat("multi", turns, **s)


def persona(r: R) -> Chat:
    n, p, c = r.choice(NAMES), r.choice(PEOPLE), r.choice(CITIES)
    s = settings(r)
    s["system"] = r.choice(
        (f"You are {n}, a {p} from {c}.", f"Your name is {n}. You are a {p} and live in {c}.")
    )
    q, a = r.choice(
        (
            ("What is your name?", f"My name is {n}."),
            ("Who are you?", f"I am {n}, a {p} from {c}."),
            ("Where do you live?", f"I live in {c}."),
            ("What is your job?", f"I am a {p}."),
        )
    )
    return Chat(
        "persona", [Turn("user", f"{q}"), Turn("assistant", a, f"I am {n}, a {p} from {c}.")], **s
    )


def needle_text(r: R, sentences: int) -> tuple[str, str, str, str]:
    """Filler with a few codes in it; returns text, key, value and the wording of the kind."""
    count = r.choice((1, 1, 2, 3, 4)) if sentences > 6 else r.choice((1, 2))
    keys = r.sample(NAMES if r.random() < 0.5 else PROJECTS, count)
    word = r.choice(("code", "code", "code", "password", "key", "number"))
    values = []
    for _ in keys:
        values.append(
            "".join(r.choice("0123456789") for _ in range(r.randint(4, 6)))
            if word in ("code", "number") or r.random() < 0.5
            else identifier(r)
        )
    rows = [filler(r) for _ in range(sentences)]
    for k, v in zip(keys, values, strict=True):
        rows.insert(r.randint(0, len(rows)), f"The {word} for {k} is {v}.")
    i = r.randrange(count)
    return " ".join(rows), keys[i], values[i], word


def needle(low: int, high: int) -> Task:
    """A needle in low…high filler sentences (about 15 tokens each)."""

    def task(r: R) -> Chat:
        n = int(low * (high / max(low, 1)) ** r.random()) if low else r.randint(0, high)
        text, key, value, word = needle_text(r, n)
        q = r.choice(
            (
                f"What is the {word} for {key}?",
                f"Tell me the {word} for {key}.",
                f"Which {word} belongs to {key}?",
            )
        )
        answer = f"The {word} for {key} is {value}."
        s = settings(r)
        think = f"I look for {key}. The {word} is {value}."
        if r.random() < 0.2:
            body = [
                Turn("user", f"Read this text. {text}"),
                Turn("assistant", "I have read it.", "The user gives me a text."),
                Turn("user", q),
                Turn("assistant", answer, think),
            ]
        else:
            body = [
                Turn(
                    "user", r.choice((f"{text}\n\n{q}", f"Read this text: {text}\n\nQuestion: {q}"))
                ),
                Turn("assistant", answer, think),
            ]
        return Chat("needle", body, **s)

    return task


def string_param(name: str, description: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": description}},
        "required": [name],
    }


WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": string_param("city", "The city"),
}
CALCULATOR = {
    "name": "calculator",
    "description": "Compute an expression",
    "parameters": string_param("expression", "The expression"),
}
SEARCH = {
    "name": "search",
    "description": "Search the web",
    "parameters": {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
}
CLOCK = {
    "name": "get_time",
    "description": "Get the time in a city",
    "parameters": string_param("city", "The city"),
}
LOOKUP_VERBS, LOOKUP_NOUNS = (
    ("get", "find", "read", "open", "fetch", "check"),
    ("order", "file", "user", "ticket", "account", "record", "device", "page"),
)


def tool(r: R) -> Chat:
    s = settings(r)
    noun, verb = r.choice(LOOKUP_NOUNS), r.choice(LOOKUP_VERBS)
    own = {
        "name": f"{verb}_{noun}",
        "description": f"{cap(verb)} a {noun}",
        "parameters": string_param(f"{noun}_id", f"The {noun}"),
    }
    kind = r.randrange(12)
    needed = (
        WEATHER
        if kind <= 3
        else CALCULATOR
        if kind <= 5
        else SEARCH
        if kind <= 7
        else CLOCK
        if kind == 8
        else own
        if kind <= 10
        else None
    )
    pool = [t for t in (WEATHER, CALCULATOR, SEARCH, CLOCK, own) if t is not needed]
    tools = r.sample(pool, r.randint(0 if needed else 1, 3)) + ([needed] if needed else [])
    r.shuffle(tools)
    if needed is None:
        q, think, a = r.choice((fact, about, echo))(r)
        return Chat(
            "tool_none",
            [Turn("user", q), Turn("assistant", a, think + " No tool is needed.")],
            tools=tools,
            **s,
        )
    calls: list[tuple[str, dict[str, Any]]]
    results: list[str]
    if needed is WEATHER:
        cities = r.sample(CITIES, 2 if r.random() < 0.25 else 1)
        q = r.choice(
            (
                f"What is the weather in {' and '.join(cities)}?",
                f"How is the weather in {' and '.join(cities)} today?",
                f"Weather for {' and '.join(cities)} please.",
            )
        )
        calls = [("get_weather", {"city": c}) for c in cities]
        seen = [(c, r.randint(-9, 35), r.choice(SKIES)) for c in cities]
        results = [dump({"city": c, "temperature": t, "sky": k}) for c, t, k in seen]
        answer = " ".join(f"It is {k} in {c} with {t} degrees." for c, t, k in seen)
        think = f"I need the weather of {' and '.join(cities)}."
    elif needed is CALCULATOR:
        op = r.choice("+-*")
        e = f"{r.randint(10, 999)} {op} {r.randint(10, 999)}"
        v = str(eval(e))
        q = r.choice(
            (
                f"What is {e}? Use the calculator.",
                f"Use the calculator: {e}",
                f"Compute {e} with the tool.",
            )
        )
        calls, results, answer, think = (
            [("calculator", {"expression": e})],
            [v],
            f"{e} = {v}",
            f"I use the calculator for {e}.",
        )
    elif needed is SEARCH:
        topic = r.choice(
            (f"{r.choice(WORDS)} {r.choice(WORDS)}", f"{r.choice(PROJECTS)} project", identifier(r))
        )
        limit = r.randint(1, 9) if r.random() < 0.5 else None
        q = r.choice((f"Search for {topic}.", f"Search the web for {topic}.")) + (
            f" Give {limit} results." if limit else ""
        )
        calls = [("search", {"query": topic, **({"limit": limit} if limit else {})})]
        found = filler(r)
        results, answer, think = [found], f"I found this: {found}", f"I search for {topic}."
    elif needed is CLOCK:
        c = r.choice(CITIES)
        t = f"{r.randint(0, 23):02d}:{r.randint(0, 59):02d}"
        q = r.choice((f"What time is it in {c}?", f"Tell me the time in {c}."))
        calls, results, answer, think = (
            [("get_time", {"city": c})],
            [t],
            f"It is {t} in {c}.",
            f"I need the time in {c}.",
        )
    else:
        i = identifier(r)
        q = r.choice((f"{cap(verb)} the {noun} {i}.", f"Please {verb} {noun} {i}."))
        state = r.choice(("open", "closed", "ready", "lost", "new", "done"))
        calls, results, answer, think = (
            [(own["name"], {f"{noun}_id": i})],
            [dump({"id": i, "state": state})],
            f"The {noun} {i} is {state}.",
            f"I call {own['name']} with {i}.",
        )
    turns = [
        Turn("user", q),
        Turn("assistant", "", think, calls),
        *(Turn("tool", x) for x in results),
        Turn("assistant", answer, "I have the result."),
    ]
    return Chat("tool", turns, tools=tools, **s)


SHORT: list[tuple[Task, float]] = [(simple(n), w) for n, (_, w) in SIMPLE.items()] + [
    (multi, 1.6),
    (persona, 0.4),
    (needle(0, 8), 2.2),
    (needle(6, 50), 1.2),
    (tool, 2.2),
]
LONG: list[tuple[Task, float]] = [(needle(40, 230), 1.0)]


def sample(r: R, table: list[tuple[Task, float]], held_out: bool = False) -> Chat:
    tasks, weights = zip(*table, strict=True)
    while True:
        chat = r.choices(tasks, weights)[0](r)
        if chat.held_out() == held_out:
            return chat
