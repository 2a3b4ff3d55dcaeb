"""What a study runs on: settings, parts, resumption, provenance, files and results; knows no study."""
