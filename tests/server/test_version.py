from __future__ import annotations

import re

from server.version import fingerprint, version


def test_version_is_the_installed_one() -> None:
    assert re.fullmatch(r"\d+(\.\w+)*(\+\w+)?", version())
    assert fingerprint() == f"ds41-{version()}"
