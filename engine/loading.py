"""From a model file and settings to a runner that is ready for its first step."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.errors import PlacementError
from engine.model.backbone import Backbone
from engine.model.engram import EngramHasher
from engine.model.load import Progress, fill_weights
from engine.model.names import backbone_names
from engine.model.precision import Precision, resolve_device, resolve_precision
from engine.model.state import allocate_state
from engine.runner import ModelRunner
from engine.tokenizer import Tokenizer
from memory.capacity import free_bytes
from memory.gguf import ModelFile, open_model

_LOG = logging.getLogger(__name__)
_SMALL_HIDDEN_SIZE = 1024
_DEFAULT_THREADS = torch.get_num_threads()  # torch's own choice, before anything changed it


@dataclass
class LoadedModel:
    """A runner with what belongs to it."""

    name: str
    """The file's name without its ending."""
    runner: ModelRunner
    tokenizer: Tokenizer
    file: ModelFile

    def close(self) -> None:
        """Free graphs and close the file."""
        self.runner.close()
        self.file.close()


def set_cpu_threads(num_threads: int, hidden_size: int) -> None:
    """Set the process's threads of CPU arithmetic; 0 decides by the model's size.

    The operations of a small model take microseconds. Threads that wait for each other at the end
    of each cost more than they bring, and with another busy process beside them many times more.
    """
    small = hidden_size < _SMALL_HIDDEN_SIZE
    torch.set_num_threads(num_threads or (1 if small else _DEFAULT_THREADS))


def warn_without_effect(config: EngineConfig, device: torch.device) -> None:
    """Log one line for each setting that was changed and does nothing on this device."""
    cuda_only = {"cuda_graphs": config.cuda_graphs == "on"}
    cpu_only = {"cpu_threads": config.cpu_threads != 0}
    for name, changed in (cpu_only if device.type == "cuda" else cuda_only).items():
        if changed:
            _LOG.warning("setting %s has no effect on device %s", name, device.type)


def check_fits(weight_bytes: int, cache_bytes: int, device: torch.device) -> None:
    """Compare weights and cache with the free memory before anything is read.

    Raises:
        PlacementError: they do not fit; says need and have in GiB.
    """
    free = free_bytes(device)
    if free is not None and weight_bytes + cache_bytes > free:
        where = "GPU memory" if device.type == "cuda" else "host memory"
        raise PlacementError(
            f"{where}: weights {weight_bytes / 2**30:.2f} GiB (decoded to the compute type) and "
            f"cache {cache_bytes / 2**30:.2f} GiB are needed, {free / 2**30:.2f} GiB are free; "
            "take a smaller model, a 16-bit dtype, or lower max_model_len or max_num_seqs"
        )


def load_model(
    model_path: str | Path, config: EngineConfig, progress: Progress | None = None
) -> LoadedModel:
    """Open, validate, load and warm up a model.

    Args:
        model_path: a GGUF file, or any shard of a set.
        config: settings.
        progress: hears stage names and fractions.

    Raises:
        ModelFileError: the file is missing, damaged or incomplete.
        ConfigError: a setting does not suit the machine or the model.
        PlacementError: it does not fit the memory.
        CaptureError: a step cannot be compiled or captured.
    """
    device = resolve_device(config)
    precision = resolve_precision(config, device)
    warn_without_effect(config, device)
    file = open_model(model_path, engram_path=config.engram_path)
    try:
        if device.type == "cpu":
            set_cpu_threads(config.cpu_threads, file.config.hidden_size)
        tokenizer = Tokenizer.from_metadata(file.metadata, str(model_path))
        runner = make_runner(file, config, precision, device, progress)
        runner.prepare(progress)
    except BaseException:
        file.close()
        raise
    return LoadedModel(Path(model_path).stem, runner, tokenizer, file)


def make_runner(
    file: ModelFile,
    config: EngineConfig,
    precision: Precision,
    device: torch.device,
    progress: Progress | None = None,
) -> ModelRunner:
    """Build the model of an opened file and fill it; `ModelRunner.prepare` is left to the caller.

    Raises:
        ModelFileError, ConfigError, PlacementError: as `load_model`.
    """
    model = file.config
    with torch.inference_mode():
        backbone = Backbone(model, precision, config.kv_fake_quant)
        weight_bytes = sum(p.numel() * p.element_size() for p in backbone.parameters())
        planned = allocate_state(model, None, config, precision, torch.device("meta"))
        check_fits(weight_bytes, planned.num_bytes(), device)
        state = allocate_state(model, None, config, precision, device)
        fill_weights(backbone, file, backbone_names(model), device, str(file.path), progress)
    engram = None
    if model.engram is not None and file.engram is not None:
        engram = (file.engram, EngramHasher(model.engram))
    return ModelRunner(backbone, state, engram, config, precision, device)
