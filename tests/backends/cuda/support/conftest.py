"""What operators are tried in these tests is tried: no result is kept, or taken from other tests."""

from __future__ import annotations

import pytest
from executorch.backends.cuda.support.dry_run import SupportCheck


@pytest.fixture(autouse=True)
def caches_no_support_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SupportCheck, "get_or_check", staticmethod(lambda specs, keys, check: check())
    )
