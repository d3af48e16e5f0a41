from __future__ import annotations

from server.chat import ParserSetup, RenderedPrompt, Tool


def test_rendered_prompt_text_and_tools() -> None:
    tool = Tool("f", "", {})
    prompt = RenderedPrompt(
        spans=(("<｜User｜>", True), ("a", False)),
        thinking=False,
        setup=ParserSetup(start="answer", tools=(tool,)),
        effort=0,
    )
    assert prompt.text == "<｜User｜>a"
    assert prompt.tools == (tool,)
