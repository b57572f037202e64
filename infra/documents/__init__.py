"""What `--json` prints: each kind of document a frozen type, its JSON Schema in schemas/ (docs/scripts.md)."""
