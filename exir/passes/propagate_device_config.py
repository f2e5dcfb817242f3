"""What a method's device placement can be told, in ``ExecutorchBackendConfig``.

Serves ``executorch.exir.passes.propagate_device_config``: upstream's class (pytorch/executorch#19961)
and ``shared_stream``. Imported by the configuration, so it registers no operators.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass


@dataclass
class PropagateDeviceConfig:
    """Options of `PropagateDevicePass`, which says what they mean, for one method or for all.

    Attributes:
        skip_h2d_for_method_inputs: The caller passes device tensors for the inputs of delegates.
        skip_d2h_for_method_outputs: Delegates' outputs are returned on their device.
        shared_stream: The host runs all delegates of a device on one stream, so that no copy has
            to stand between two that hand a tensor over.
    """

    skip_h2d_for_method_inputs: bool | dict[str, bool] = False
    skip_d2h_for_method_outputs: bool | dict[str, bool] = False
    shared_stream: bool | dict[str, bool] = False

    def __hash__(self) -> int:
        return hash(str(astuple(self)))  # upstream lets values be dicts
