"""``python -m kvfence``: the command line."""

from kvfence.checker.cli.main import main

if __name__ == "__main__":
    main()
