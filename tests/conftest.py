"""Shared fixtures: golden vectors, files made from them, a model that can be stepped by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from engine.config import EngineConfig
from engine.model.backbone import Backbone
from engine.model.draft import Draft
from engine.model.engram import EngramHasher
from engine.model.inputs import StepInputs, StepShape
from engine.model.load import fill_weights
from engine.model.names import backbone_names, draft_names
from engine.model.precision import DTYPES, Precision
from engine.model.state import CacheState, allocate_state
from memory.gguf import DraftFile, ModelFile, open_draft, open_model
from memory.gguf.maker import TINY_CONFIG, convert

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Folder of the golden model and its vectors."""
    return DATA / "golden"


@pytest.fixture(scope="session")
def operators(golden_dir: Path) -> dict[str, Tensor]:
    """Golden vectors of single operators."""
    return load_file(golden_dir / "cases" / "operators.safetensors")


@pytest.fixture(scope="session")
def golden_case(golden_dir: Path) -> Callable[[str, bool], dict[str, Tensor]]:
    """Load a whole-model case: golden_case(name, quant)."""

    def load(name: str, quant: bool) -> dict[str, Tensor]:
        return load_file(
            golden_dir / "cases" / f"{name}.quant_{'on' if quant else 'off'}.safetensors"
        )

    return load


@pytest.fixture(scope="session")
def golden_gguf(golden_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden model as one F32 GGUF file; its draft lies beside it as golden-draft.gguf."""
    out = tmp_path_factory.mktemp("golden") / "golden.gguf"
    convert(golden_dir, out, draft=out.with_name("golden-draft.gguf"))
    return out


@pytest.fixture(scope="session")
def four_layer_config() -> Callable[..., dict[str, Any]]:
    """Configuration of a small model without draft: four_layer_config(**text_config changes).

    Layers: window only, ratio 2 with Engram, candidate source, reindexer.
    """

    def make(**changes: Any) -> dict[str, Any]:
        config = copy.deepcopy(TINY_CONFIG)
        config["text_config"] |= {
            "num_hidden_layers": 4,
            "compress_ratios": [0, 2, 1, 1, 0, 0, 0],
            "kv_source_layer_ids": [1, 2],
            "index_source_layer_ids": [1, 2, 3],
            "candidate_source_layer_id": 2,
            "engram_layer_ids": [1],
            "num_nextn_predict_layers": 0,
            "dspark_block_size": 0,
            **changes,
        }
        return config

    return make


@dataclass
class SteppedModel:
    """A backbone with its draft and a cache, run step by step; shapes as in `engine.model`."""

    file: ModelFile
    draft_file: DraftFile
    backbone: Backbone
    draft: Draft
    state: CacheState
    device: torch.device

    @classmethod
    def build(
        cls, path: Path, draft_path: Path, device: str = "cpu", **settings: Any
    ) -> SteppedModel:
        """Load both files; `settings` are those of EngineConfig."""
        defaults = {"max_model_len": 512, "max_num_seqs": 2, "dtype": "float32"}
        config = EngineConfig(**{**defaults, **settings})
        compute = DTYPES[config.dtype]
        residual = torch.bfloat16 if compute is torch.bfloat16 else torch.float32
        precision = Precision(compute=compute, residual=residual)
        where = torch.device(device)
        file, draft_file = open_model(path), open_draft(draft_path)
        with torch.inference_mode():
            backbone = Backbone(
                file.config, precision, config.kv_fake_quant, draft_file.config.target_layers
            )
            fill_weights(backbone, file, backbone_names(file.config), where, str(path))
            draft = Draft(draft_file.config, precision, config.kv_fake_quant)
            fill_weights(draft, draft_file, draft_names(draft_file.config), where, str(draft_path))
            state = allocate_state(file.config, draft_file.config, config, precision, where)
        return cls(file, draft_file, backbone, draft, state, where)

    def inputs(
        self, tokens: Sequence[int], start: int, end: int, slot: int, padding: int = 0
    ) -> StepInputs:
        """Rows of positions start ... end-1, with padding rows behind them."""
        engram: tuple[Tensor, ...] = ()
        if self.file.config.engram is not None:
            assert self.file.engram is not None
            hasher = EngramHasher(self.file.config.engram)
            gathered = [self.file.engram.gather(r) for r in hasher.rows(tokens, start, end)]
            engram = tuple(
                torch.cat((g, torch.randn(padding, g.shape[1]))).to(
                    self.device, self.backbone.precision.compute
                )
                for g in gathered
            )
        pad = [0] * padding
        rows = [[*tokens[start:end], *pad], [*range(start, end), *pad]]
        rows.append([slot] * (end - start) + [self.state.scratch_slot] * padding)
        ids, positions, slots = torch.tensor(rows, device=self.device)
        return StepInputs(ids, positions, slots, engram)

    def step(
        self,
        tokens: Sequence[int],
        start: int,
        end: int,
        prefill: bool,
        slot: int = 1,
        padding: int = 0,
        probe: Any = None,
    ) -> Tensor:
        """Run one step, store the draft's context, return logits [T, V] on the host.

        `probe` hears every inner value, copied to the host.
        """

        def to_host(name: str, layer: int, value: Tensor) -> None:
            probe(name, layer, value.cpu())

        with torch.inference_mode():
            inputs = self.inputs(tokens, start, end, slot, padding)
            bound = end if prefill else self.state.max_model_len
            shape = StepShape(prefill=prefill, context_bound=bound, tile_rows=16)
            collapsed, taps = self.backbone(
                inputs, self.state, shape, to_host if probe is not None else None
            )
            self.draft.store_context(taps, inputs, self.state, shape)
            self.taps = taps[: end - start]
            return self.backbone.logits(collapsed)[: end - start].cpu()


@pytest.fixture(scope="session")
def stepped_model() -> Callable[..., SteppedModel]:
    """Build a model to step by hand: stepped_model(path, draft_path, device, **settings)."""
    return SteppedModel.build


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Run a test on the CPU, and on a GPU with -m gpu."""
    if request.param == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    return str(request.param)


@pytest.fixture(scope="session")
def _built_models() -> dict[tuple[bool, str], SteppedModel]:
    return {}


@pytest.fixture
def golden_models(
    golden_gguf: Path, device: str, _built_models: dict[tuple[bool, str], SteppedModel]
) -> Callable[[bool], SteppedModel]:
    """Return the golden model with an empty cache: golden_models(quant)."""

    def get(quant: bool) -> SteppedModel:
        key = (quant, device)
        if key not in _built_models:
            draft = golden_gguf.with_name("golden-draft.gguf")
            _built_models[key] = SteppedModel.build(golden_gguf, draft, device, kv_fake_quant=quant)
        model = _built_models[key]
        with torch.inference_mode():
            for slot in range(model.state.num_slots + 1):
                model.state.clear_slot(slot)
        return model

    return get
