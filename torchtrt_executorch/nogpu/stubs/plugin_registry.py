"""An empty TensorRT plugin registry, where TensorRT's libraries are missing.

Upstream asks it while it partitions, which plugins there are to convert an operator with. The
bindings answer None instead of a registry, as the link stubs return a null pointer for one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any


class PluginRegistry:
    """The part of ``tensorrt.IPluginRegistry`` that needs no library.

    Creators written in Python can be registered and found. A library of plugins can't be loaded,
    and whatever else a registry does is an error.

    Args:
        unavailable: Returns that error.
    """

    parent_search_enabled = True
    error_recorder = None

    def __init__(self, unavailable: Callable[[], Exception]) -> None:
        self._unavailable = unavailable
        self._creators: dict[tuple[str, str, str], Any] = {}

    def get_creator(self, type: str, version: str, plugin_namespace: str = "") -> Any:
        """Return the creator of a plugin, None if there is none."""
        return self._creators.get((type, version, plugin_namespace))

    get_plugin_creator = get_creator  # its name before TensorRT 11

    def register_creator(self, creator: Any, plugin_namespace: str = "") -> bool:
        """Add a creator; return False if there is one for that plugin already."""
        key = (creator.name, creator.plugin_version, plugin_namespace)
        return self._creators.setdefault(key, creator) is creator

    def deregister_creator(self, creator: Any) -> bool:
        """Remove a creator; return whether it was there."""
        keys = [
            key for key, registered in self._creators.items() if registered is creator
        ]
        for key in keys:
            del self._creators[key]
        return bool(keys)

    @property
    def all_creators(self) -> list[Any]:
        """The creators that were registered."""
        return list(self._creators.values())

    all_creators_recursive = plugin_creator_list = all_creators

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._unavailable()


def apply(bindings: ModuleType, unavailable: Callable[[], Exception]) -> None:
    """Replace ``tensorrt_bindings``' registries, which would be None, by an empty one."""
    registry = PluginRegistry(unavailable)
    for name in ("get_plugin_registry", "get_builder_plugin_registry"):
        if hasattr(bindings, name):
            setattr(bindings, name, lambda *arguments, **named: registry)
