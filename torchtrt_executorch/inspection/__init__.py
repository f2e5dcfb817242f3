"""Inspect a ``.pte``: facts, advice, and differences between exports.

:mod:`.facts` is the model, :func:`read` makes it of a file. The terminal's table, JSON, the page
and the diagram are views of it; :mod:`.advice` and :mod:`.difference` look at nothing else.
"""

from torchtrt_executorch.inspection.model.facts import Facts
from torchtrt_executorch.inspection.model.reading import read

__all__ = ["Facts", "read"]
