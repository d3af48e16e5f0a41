"""Train the pocket tokenizer (byte-level BPE with DeepSeek's pre-tokenizer), and load it.

python tokenizer.py OUT.json
"""

from __future__ import annotations

import argparse
import json
import random
import re
import unicodedata
from pathlib import Path
from typing import Any

from packing import Coder
from prompt import ADDED, BOS, EOS, PAD, SPECIAL_FLAG, render
from tasks import SHORT, sample
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)

from memory.gguf.maker.vocabulary import (
    CONTROL,
    NORMAL,
    USER_DEFINED,
    Vocabulary,
    byte_alphabet,
)

DIGITS = r"\p{N}{1,3}"
SPLITS = (
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


def pre_tokenizer(digits: str) -> Any:
    parts = [pre_tokenizers.Split(Regex(p), "isolated", False) for p in (digits, *SPLITS)]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*parts, to_bytes])


def train(vocab_size: int, documents: int, seed: int) -> dict[str, Any]:
    """The file content: ids 0...2 bos, eos, pad; 256 bytes; merges; the added markers last."""
    r = random.Random(seed)
    texts = []
    for _ in range(documents):
        chat = sample(r, SHORT)
        chat.tools = chat.tools if r.random() < 0.1 else []
        texts += [s.text for s in render(chat) if not s.special]
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizer(
        r"\p{N}"
    )  # one digit per piece: no merge of digits is learned
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(ADDED) - 3,
        initial_alphabet=byte_alphabet(),
        special_tokens=[],
        show_progress=False,
        max_token_length=16,
    )
    tok.train_from_iterator(texts, trainer)
    stored = json.loads(tok.to_str())["model"]["merges"]
    merges = [m if isinstance(m, list) else m.split(" ") for m in stored]
    tokens = [BOS, EOS, PAD, *byte_alphabet(), *("".join(m) for m in merges)]
    if len(set(tokens)) != len(tokens) or len(tokens) + len(ADDED) != vocab_size:
        raise SystemExit(
            f"tokenizer: {len(tokens)} tokens and {len(ADDED)} markers do not make {vocab_size}; "
            "use more documents or a smaller vocabulary"
        )
    return {
        "tokens": [*tokens, *ADDED],
        "merges": [" ".join(m) for m in merges],
        "markers": len(ADDED),
    }


def to_tokenizer(content: dict[str, Any], added: bool) -> Tokenizer:
    """A Hugging Face tokenizer of the file content, with or without the added vocabulary."""
    tokens, markers = content["tokens"], content["markers"]
    vocab = {t: i for i, t in enumerate(tokens[: len(tokens) - markers])}
    merges = [(m.split(" ")[0], m.split(" ")[1]) for m in content["merges"]]
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, byte_fallback=False))
    tok.pre_tokenizer = pre_tokenizer(DIGITS)
    tok.decoder = decoders.ByteLevel()
    if added:
        for text in (BOS, EOS, PAD, *tokens[len(tokens) - markers :]):
            special = text in (BOS, EOS, PAD) or SPECIAL_FLAG.get(text, False)
            tok.add_tokens([AddedToken(text, normalized=False, special=special)])
            if tok.token_to_id(text) != tokens.index(text):
                raise ValueError(f"added token {text} has the wrong id")
    return tok


def token_map(content: dict[str, Any]) -> list[int]:
    """Token id to compressed id for the Engram hash: ids that read alike share one class."""
    tok = to_tokenizer(content, added=True)
    classes: dict[str, int] = {}
    out = []
    for i, raw in enumerate(content["tokens"]):
        text = tok.decode([i], skip_special_tokens=False)
        if "\ufffd" in text:
            key = raw
        else:
            key = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
            key = "".join(c for c in key if unicodedata.category(c) != "Mn").lower()
            key = re.sub(r"[ \t\r\n]+", " ", key)
            key = (" " if key == " " else key.strip(" ")) or text
        out.append(classes.setdefault(key, len(classes)))
    return out


def to_vocabulary(content: dict[str, Any]) -> Vocabulary:
    """The file content as a GGUF file stores it."""
    tokens, first_marker = content["tokens"], len(content["tokens"]) - content["markers"]

    def token_type(i: int, text: str) -> int:
        if i < 3 or SPECIAL_FLAG.get(text, False):
            return CONTROL
        return USER_DEFINED if i >= first_marker else NORMAL

    return Vocabulary(tokens, [token_type(i, t) for i, t in enumerate(tokens)], content["merges"])


def load(path: Path) -> tuple[Coder, dict[str, Any]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    index = {t: i for i, t in enumerate(content["tokens"])}
    special = {t: index[t] for t in (BOS, EOS, PAD, *ADDED)}
    return Coder(to_tokenizer(content, added=False), special), content


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("out", type=Path, help="file to write; tokenizer.json goes beside it")
    p.add_argument("--vocab", type=int, default=1536, help="number of tokens")
    p.add_argument("--documents", type=int, default=30000, help="documents to learn merges from")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    content = train(args.vocab, args.documents, args.seed)
    text = json.dumps(content, ensure_ascii=False, indent=0) + "\n"
    args.out.write_text(text, encoding="utf-8")
    to_tokenizer(content, added=True).save(str(args.out.with_name("tokenizer.json")))
    print(f"{args.out}: {len(content['tokens'])} tokens, {max(token_map(content)) + 1} classes")


if __name__ == "__main__":
    main()
