"""What patches add to the passes of ``to_executorch``, and to what its memory planner goes by.

Upstream would name a pass in ``edge_to_executorch_passes``, and call a function where it computes
lifetimes; patches of it do so from outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import signature
from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped


@dataclass(frozen=True)
class MethodConfig:
    """What ``ExecutorchBackendConfig`` says of one method.

    Attributes:
        name: The method's.
        own: How many passes the caller gives; they come first.
        devices: Its ``propagate_device_config``.
        planning: Its ``memory_planning_pass``.
    """

    name: str
    own: int
    devices: Any
    planning: Any

    @classmethod
    def of(cls, config: Any, name: str | None = None) -> MethodConfig:
        """The part of a configuration that is one method's."""

        def of_method(field: str) -> Any:
            value = getattr(config, field, None)
            return value.get(name) if isinstance(value, dict) else value

        devices = of_method("propagate_device_config")
        planning = of_method("memory_planning_pass")
        return cls(name or "forward", len(config.passes), devices, planning)


def amend_passes(
    module: ModuleType, amend: Callable[[list[Any], MethodConfig], list[Any]]
) -> None:
    """Have ``edge_to_executorch_passes`` return what ``amend`` makes of a method's passes."""

    def around(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = signature(function).bind(*args, **kwargs).arguments
        method = MethodConfig.of(given["config"], given.get("name"))
        return amend(function(*args, **kwargs), method)

    module.edge_to_executorch_passes = wrapped(  # type: ignore[attr-defined]
        module.edge_to_executorch_passes, around
    )


def amend_lifetimes(module: ModuleType, amend: Callable[[Any], None]) -> None:
    """Have ``update_all_tensors_lifetime``, which every algorithm goes by, end with ``amend(graph_module)``."""

    def around(
        function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        specs = function(*args, **kwargs)
        amend(args[0] if args else kwargs["graph_module"])
        return specs

    module.update_all_tensors_lifetime = wrapped(  # type: ignore[attr-defined]
        module.update_all_tensors_lifetime, around
    )
