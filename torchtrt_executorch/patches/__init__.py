"""The files under ``py/``, ``backends/`` and ``exir/``, by the upstream names they serve."""
