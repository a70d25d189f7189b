"""What several tests need."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import Optional

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def need(condition: object, what: str) -> None:
    """Skip the test if `what` is missing. In CI, everything must be there."""
    if not condition:
        assert not os.environ.get("CI"), f"{what} is missing"
        pytest.skip(f"{what} is missing")


@pytest.fixture
def demo() -> str:
    """The capture that the documentation reads."""
    return str(ROOT / "examples" / "demo.pcapng")


@pytest.fixture
def program() -> str:
    """The program, which the variable STEERAGE names."""
    found: Optional[str] = os.environ.get("STEERAGE") or shutil.which("steerage")
    need(found, "the program steerage (set STEERAGE to its path)")
    return str(found)
