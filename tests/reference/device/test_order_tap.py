"""How accesses to places become ranges."""

import numpy as np
import pytest

from kvfence.reference.device.order_tap import runs_of


@pytest.mark.parametrize("start", range(5))
def test_neighbouring_places_are_one_range_wherever_they_begin(start: int) -> None:
    places = np.array([0, 1, 2, 5, 7, 8]) + start
    assert runs_of(3, places, 10) == [
        (3, 10 * start, 30),
        (3, 10 * (start + 5), 10),
        (3, 10 * (start + 7), 20),
    ]
    assert runs_of(3, places[:0], 10) == []
