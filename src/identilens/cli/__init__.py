"""The command line: one thin file for each command."""
