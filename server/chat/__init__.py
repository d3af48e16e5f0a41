"""The DeepSeek-V4.1 chat protocol: request to prompt, generated text to reply.

    prompt = render(body)                     # RequestError for a bad request
    ids = prompt_ids(prompt, tokenizer)
    parser = ChatParser(prompt.setup, stop=stop_strings(body), markers=marker_ids(tokenizer))
    deltas = parser.feed_token(token_id, text)   # or parser.feed(text) without ids
    deltas, finish_reason = parser.finish("stop")
    reply = parser.reply()

`parser.done` says that nothing more is wanted; `parser.take_forced()` gives the spans to append
where a demanded call must be opened. `render_file` and `parse_file` do the same for JSON files.
"""

from server.chat.events import (
    ChatReply,
    ContentDelta,
    Delta,
    ParserSetup,
    ReasoningDelta,
    RenderedPrompt,
    Span,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallStart,
)
from server.chat.files import parse_file, render_file
from server.chat.parse import ChatParser, marker_ids
from server.chat.render import render
from server.chat.spans import prompt_ids
from server.chat.validate import stop_strings, validate_request

__all__ = [
    "ChatParser",
    "ChatReply",
    "ContentDelta",
    "Delta",
    "ParserSetup",
    "ReasoningDelta",
    "RenderedPrompt",
    "Span",
    "Tool",
    "ToolCall",
    "ToolCallArguments",
    "ToolCallStart",
    "marker_ids",
    "parse_file",
    "prompt_ids",
    "render",
    "render_file",
    "stop_strings",
    "validate_request",
]
