"""Host instructions that stand together, run as one by ExecuTorch's own runtime.

``load(..., compile=True)`` asks for it. :mod:`~torchtrt_executorch.runtime.segments.operators` says
which kernels are taken, :mod:`~torchtrt_executorch.runtime.segments.choice` finds the straight lines,
:mod:`~torchtrt_executorch.runtime.segments.carving` makes a program of each, and
:mod:`~torchtrt_executorch.runtime.segments.native` runs it. A delegate of a backend that ExecuTorch's
Python package has, as XNNPACK, is a segment of one instruction, with or without that option.
"""
