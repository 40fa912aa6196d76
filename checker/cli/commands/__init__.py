"""The commands of `kvfence`, one file each; :mod:`kvfence.checker.cli.app` registers them."""
