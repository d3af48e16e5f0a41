"""The table of step sizes that exist; nothing else decides how many rows a step is padded to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from engine.errors import ConfigError


class BucketTable:
    """Ascending, distinct row counts.

    Args:
        sizes: row counts, each at least 1.

    Raises:
        ConfigError: no size, or one below 1.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self.sizes = tuple(sorted(set(sizes)))
        if not self.sizes or self.sizes[0] < 1:
            raise ConfigError(f"buckets: need row counts of at least 1, got {list(self.sizes)}")

    @property
    def largest(self) -> int:
        """Most rows of one step."""
        return self.sizes[-1]

    def fit(self, num_rows: int) -> int:
        """Return the smallest bucket that holds `num_rows`.

        Raises:
            ConfigError: there is none.
        """
        if num_rows > self.largest:
            raise ConfigError(f"buckets: {num_rows} rows exceed the largest bucket {self.largest}")
        return self.sizes[bisect_left(self.sizes, num_rows)]

    def capture_order(self) -> Iterator[int]:
        """Yield sizes largest first, so that later captures reuse the first one's memory."""
        return reversed(self.sizes)
