"""Runs the command line as ``python -m identilens``."""

from identilens.cli.app import main

if __name__ == "__main__":
    main()
