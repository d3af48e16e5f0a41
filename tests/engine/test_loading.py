import os

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelFileError, PlacementError
from engine.loading import (
    _DEFAULT_THREADS,
    check_fits,
    load_model,
    set_cpu_threads,
    warn_without_effect,
)
from engine.pocket import draft_path, model_path


def test_loads_the_pocket_model_and_reports_progress():
    seen = []
    config = EngineConfig(device="cpu", max_model_len=64, max_num_seqs=1, decode_buckets=(1,))
    loaded = load_model(model_path(), config, lambda stage, done: seen.append((stage, done)))
    assert loaded.name == "pocket" and loaded.runner.state.max_model_len == 64
    assert not any(p.is_meta for p in loaded.runner.backbone.parameters())
    stages = list(dict.fromkeys(stage for stage, _ in seen))
    assert stages == ["loading weights", "preparing steps"]
    for stage in stages:
        fractions = [done for name, done in seen if name == stage]
        assert fractions == sorted(fractions) and fractions[-1] == 1.0
    loaded.close()


def test_a_draft_is_not_a_model():
    with pytest.raises(ModelFileError, match="dflash"):
        load_model(draft_path(), EngineConfig(device="cpu"))


def test_a_failed_load_leaves_no_file_open():
    def num_open():
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        names = [os.readlink(link) for link in links if os.path.islink(link)]
        return names.count(str(model_path().resolve()))

    def interrupt(stage, done):
        if stage == "preparing steps":
            assert num_open() > before  # the Engram table, which is read by rows
            raise RuntimeError("stop here")

    before = num_open()
    config = EngineConfig(device="cpu", max_model_len=64, max_num_seqs=1, decode_buckets=(1,))
    with pytest.raises(RuntimeError, match="stop here"):
        load_model(model_path(), config, interrupt)
    assert num_open() == before


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"no_such\.gguf"):
        load_model(tmp_path / "no_such.gguf", EngineConfig(device="cpu"))


def test_head_width_that_cannot_be_rounded_names_the_switch(tmp_path):
    import copy

    from memory.gguf.maker import TINY_CONFIG, make_random

    config = copy.deepcopy(TINY_CONFIG)
    config["text_config"] |= {"index_head_dim": 72, "num_nextn_predict_layers": 0}
    path = tmp_path / "odd.gguf"
    make_random(config, path)
    with pytest.raises(ConfigError, match="kv_fake_quant=off"):
        load_model(path, EngineConfig(device="cpu"))
    settings = {"max_model_len": 32, "max_num_seqs": 1, "decode_buckets": (1,)}
    loaded = load_model(path, EngineConfig(device="cpu", kv_fake_quant=False, **settings))
    loaded.close()


def test_small_models_take_one_thread_and_a_number_is_obeyed():
    before = torch.get_num_threads()
    try:
        set_cpu_threads(0, 256)
        assert torch.get_num_threads() == 1
        set_cpu_threads(0, 5120)
        assert torch.get_num_threads() == _DEFAULT_THREADS
        set_cpu_threads(2, 256)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_cannot_fit_is_refused_before_anything_is_read():
    check_fits(2**20, 2**20, torch.device("cpu"))
    with pytest.raises(PlacementError, match=r"host memory: weights 1048576\.00 GiB .* are free"):
        check_fits(2**50, 2**20, torch.device("cpu"))


def test_a_cache_that_cannot_fit_is_refused_quickly():
    config = EngineConfig(device="cpu", max_model_len=1 << 20, max_num_seqs=4000)
    with pytest.raises(PlacementError, match="lower max_model_len or max_num_seqs"):
        load_model(model_path(), config)


def test_settings_without_effect_are_named(caplog):
    warn_without_effect(EngineConfig(cuda_graphs="on"), torch.device("cpu"))
    assert caplog.messages == ["setting cuda_graphs has no effect on device cpu"]
    caplog.clear()
    warn_without_effect(EngineConfig(cpu_threads=2), torch.device("cuda"))
    assert caplog.messages == ["setting cpu_threads has no effect on device cuda"]
    caplog.clear()
    warn_without_effect(EngineConfig(), torch.device("cpu"))
    assert caplog.messages == []
