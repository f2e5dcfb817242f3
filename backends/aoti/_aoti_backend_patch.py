"""Amends ``aoti_backend``: says early what AOTInductor-driven backends of 1.3 can't represent.

They store a delegate's library under a key made of the method's name alone, so a second delegate
in the method clashes with the first one, after both have been compiled. From 1.4 on the key is a
hash of the library (pytorch/executorch#20077).
"""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import Any


def apply(module: ModuleType) -> None:
    """Have ``AotiBackend`` refuse more than one partition per method, before it compiles any."""
    aoti_backend: Any = module.AotiBackend

    def preprocess_multimethod(
        cls: Any,
        edge_programs: dict[str, list[Any]],
        compile_specs: dict[str, list[list[Any]]],
    ) -> dict[str, list[Any]]:
        """Compile the partitions of all methods.

        Raises:
            NotImplementedError: Two of them would store their libraries under one key.
        """
        partitions = Counter(
            cls.method_name_from_compile_specs(specs)
            for of_method in compile_specs.values()
            for specs in of_method
        )
        for method, count in partitions.items():
            if count > 1:
                raise NotImplementedError(
                    f"method {method!r} has {count} {cls.__name__} partitions, and this release "
                    "of executorch can store one library per method name: use executorch 1.4 or "
                    f"newer, or let {cls.__name__} run before the partitioner that splits its "
                    "operators"
                )
        return super(aoti_backend, cls).preprocess_multimethod(
            edge_programs, compile_specs
        )

    aoti_backend.preprocess_multimethod = classmethod(preprocess_multimethod)
