"""The events of a connector, which a trace consists of: a ``Header`` and then one event per call.

The public names are the classes of ``kvfence.spec.events`` and its function ``listed``; the page
``docs/trace-format.md`` describes each event and field. Slots are indices into a pool, from 0; keys are
64-bit hashes of token prefixes; sizes are in blocks or in tokens, as the field says.

>>> from array import array
>>> header = Header(producer="doc", pools=(Pool("gpu", 4, null=0),), groups=(Group("gpu", 16),))
>>> Alloc("gpu", "req:1.0", [1, 2], free=1)
Alloc(pool='gpu', holder='req:1.0', slots=[1, 2], free=1, group=0, at=0)
>>> listed(Evict("gpu", array("L", [1, 258]))).slots
[1, 258]
"""

from kvfence.spec.events import *  # noqa: F403
