"""Write the trained pocket model as GGUF (model and draft), and the decoded weights as a folder.

python export.py --vocab vocab.json --checkpoint build --out ../../engine/pocket --decoded decoded
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from backbone import Backbone
from build import build, pairs, restore
from draft import Draft
from safetensors.torch import save_file
from tokenizer import to_vocabulary

from memory.gguf.maker import Vocabulary, convert

TYPES = "all=q8_0,experts=mxfp4,hyper=q8_0,router=f32"


def write_source(folder: Path, backbone: Backbone, draft: Draft) -> None:
    """Write the float weights as a checkpoint folder under their official names."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.float().contiguous().clone() for k, v in pairs(backbone, draft)}
    save_file(weights, folder / "weights.safetensors")
    constants = {k: torch.as_tensor(v) for k, v in backbone.constants.items()}
    save_file(constants, folder / "engram_tables.safetensors")
    rows = [int(primes.sum()) for primes in backbone.constants["primes"]]
    outer = {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "text_config": {**backbone.cfg, "engram_num_embeddings": rows},
    }
    text = json.dumps(outer, indent=1) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def export(
    backbone: Backbone, draft: Draft, vocabulary: Vocabulary, out: Path, decoded: Path
) -> list[Path]:
    """Write pocket.gguf and pocket-draft.gguf into `out`, and what they decode to."""
    write_source(decoded / "source", backbone, draft)
    return convert(
        decoded / "source",
        out / "pocket.gguf",
        types=TYPES,
        draft=out / "pocket-draft.gguf",
        hf_out=decoded,
        vocabulary=vocabulary,
    )


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--vocab", type=Path, required=True)
    p.add_argument("--checkpoint", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True, help="folder of the two GGUF files")
    p.add_argument("--decoded", type=Path, required=True, help="folder of the decoded weights")
    args = p.parse_args()
    backbone, draft, _, content = build(args.vocab)
    if restore(args.checkpoint, "backbone", backbone) is None:
        raise SystemExit(f"{args.checkpoint}: no backbone checkpoint")
    if restore(args.checkpoint, "draft", draft) is None:
        print("no draft checkpoint: the draft file holds untrained weights")
    for path in export(backbone, draft, to_vocabulary(content), args.out, args.decoded):
        print(path)


if __name__ == "__main__":
    main()
