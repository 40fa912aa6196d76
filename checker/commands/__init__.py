"""The commands of `kvfence`, one file each; :mod:`kvfence.checker.cli` registers them."""
