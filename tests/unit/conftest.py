"""Unit tests are quick."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody pulls the plug here, so a flush to the disk (some 10 ms each) proves nothing."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
