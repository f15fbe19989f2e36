"""`--device` on hosts without a GPU: one line and a hint, before anything else is done."""

from __future__ import annotations

import pytest

from ingot.artifact import device
from ingot.cli.main import main


@pytest.mark.parametrize("verb", [("run", "m", "x"), ("verify", "m")])
def test_a_gpu_without_a_driver_is_refused_at_once(verb, monkeypatch, capsys):
    """`m` is not even looked for."""
    monkeypatch.setattr(device, "load_library", lambda: None)
    assert main([*verb, "--device", "cuda"]) == 3
    first, *hint = capsys.readouterr().err.splitlines()
    assert first == ("error: there is no GPU cuda:0: no NVIDIA driver is installed (libcuda.so.1)")
    assert len(hint) == 1 and 'device "cpu"' in hint[0]


def test_an_unknown_device_is_refused_at_once(capsys):
    assert main(["run", "m", "x", "--device", "tpu"]) == 2
    assert "device is 'tpu'" in capsys.readouterr().err
