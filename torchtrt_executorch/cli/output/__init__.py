"""Output of the command: tables, messages and comparisons."""
