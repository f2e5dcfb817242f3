"""The networks by family. Their packages are imported when one is made."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.models._families import (
    audio,
    diffusion,
    graphs,
    operators,
    policies,
    trained,
    vision,
)
from benchmarks.models._model import Network

FAMILIES: Mapping[str, Mapping[str, Network]] = {
    "trained": trained.NETWORKS,
    "timm": vision.TIMM,
    "torchvision": vision.TORCHVISION,
    "segmentation": vision.SEGMENTATION,
    "MONAI": vision.MONAI,
    "audio": audio.NETWORKS,
    "diffusers": diffusion.NETWORKS,
    "torch-geometric": graphs.NETWORKS,
    "policies": policies.NETWORKS,
    "operators": operators.NETWORKS,
}
NETWORKS = {
    name: network for family in FAMILIES.values() for name, network in family.items()
}
