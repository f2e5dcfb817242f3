"""The engine blob of a delegate: layout, metadata, reader and writer."""
