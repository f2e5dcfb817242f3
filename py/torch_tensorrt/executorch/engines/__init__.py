"""Engines in an exported program: objects, records, call nodes and traceable placeholders."""
