"""The reference implementation as a connector under test.

The only file of the checker that knows :mod:`kvfence.reference`, which needs torch; it is imported when asked for,
so that everything else works without torch.
"""
