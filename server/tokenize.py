"""POST /tokenize and /detokenize, in the shapes of vLLM and of llama-server.

They run in a thread and never touch the engine's device, so they work while it is busy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiohttp import web

from server.body import read_json
from server.chat import prompt_ids, render
from server.completion_request import encode_prompt
from server.fields import read_bool, read_text, read_token_ids, wrong
from server.state import STATE

if TYPE_CHECKING:
    from engine.tokenizer import Tokenizer


async def handle_tokenize(request: web.Request) -> web.Response:
    """Answer POST /tokenize: `prompt`, `messages` (a chat request) or `content`."""
    engine = request.app[STATE].require_engine()
    body = await read_json(request)
    reply = await asyncio.to_thread(tokenize, body, engine.tokenizer, engine.max_model_len)
    return web.json_response(reply)


async def handle_detokenize(request: web.Request) -> web.Response:
    """Answer POST /detokenize: `tokens` to text."""
    engine = request.app[STATE].require_engine()
    body = await read_json(request)
    tokenizer = engine.tokenizer
    token_ids = read_token_ids(body.get("tokens"), "tokens", tokenizer.vocab_size)
    text = await asyncio.to_thread(tokenizer.decode, token_ids)
    return web.json_response({"prompt": text, "content": text})


def tokenize(body: Mapping[str, Any], tokenizer: Tokenizer, max_model_len: int) -> dict[str, Any]:
    """Return the answer of /tokenize.

    Raises:
        RequestError: none of the three fields, or one of a wrong type.
    """
    content = read_text(body, "content")
    prompt = read_text(body, "prompt")
    if body.get("messages") is not None:
        token_ids = prompt_ids(render(body), tokenizer)
    elif prompt is not None:
        token_ids = _encode(prompt, tokenizer, read_bool(body, "add_special_tokens", True))
    elif content is not None:
        return _tokenize_content(body, content, tokenizer)
    else:
        raise wrong("prompt", "is missing; messages or content will do as well")
    with_strings = read_bool(body, "return_token_strs")
    strings = [tokenizer.token_text(token) for token in token_ids] if with_strings else None
    return {
        "count": len(token_ids),
        "max_model_len": max_model_len,
        "tokens": token_ids,
        "token_strs": strings,
    }


def _encode(text: str, tokenizer: Tokenizer, add_bos: bool) -> list[int]:
    return encode_prompt(text, tokenizer).token_ids if add_bos else tokenizer.encode_markup(text)


def _tokenize_content(body: Mapping[str, Any], text: str, tokenizer: Tokenizer) -> dict[str, Any]:
    """Answer llama-server's form of the request."""
    if read_bool(body, "parse_special", True):
        token_ids = _encode(text, tokenizer, read_bool(body, "add_special"))
    else:
        bos = [tokenizer.bos_id] if read_bool(body, "add_special") else []
        token_ids = bos + tokenizer.encode_text(text)
    if not read_bool(body, "with_pieces"):
        return {"tokens": token_ids}
    pieces = [{"id": token, "piece": tokenizer.token_text(token)} for token in token_ids]
    return {"tokens": pieces}
