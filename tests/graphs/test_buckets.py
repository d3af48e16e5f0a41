import pytest

from engine.errors import ConfigError
from graphs.buckets import BucketTable


def test_fit_takes_the_smallest_that_holds():
    table = BucketTable((8, 1, 4, 4))
    assert table.sizes == (1, 4, 8) and table.largest == 8
    assert [table.fit(n) for n in range(1, 9)] == [1, 4, 4, 4, 8, 8, 8, 8]
    assert list(table.capture_order()) == [8, 4, 1]


@pytest.mark.parametrize("sizes", [(), (0,), (-1, 2)])
def test_impossible_tables_are_refused(sizes):
    with pytest.raises(ConfigError, match="at least 1"):
        BucketTable(sizes)


def test_too_many_rows_are_refused():
    with pytest.raises(ConfigError, match="9 rows exceed the largest bucket 8"):
        BucketTable((8,)).fit(9)
