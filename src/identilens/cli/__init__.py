"""The command line: made from the studies' settings, each command imported when it is called."""
