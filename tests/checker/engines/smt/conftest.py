"""All tests of the engines that ask z3 are skipped without z3."""

import pytest

pytest.importorskip("z3", reason="needs the extra smt")
