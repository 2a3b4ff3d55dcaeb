"""Published tables and figures made again: one file each, with the published numbers beside the measured ones."""
