"""Networks of timm, torchvision, segmentation-models-pytorch and MONAI, from small configurations."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models._model import Network, batches, random

_IMAGE = random(1, 3, 64, 64)
_IMAGES = batches(3, 64, 64)


def _timm(name: str, **options: Any) -> Network:
    make = partial(_of("timm", "create_model"), name, num_classes=10, **options)
    return Network(make, _IMAGE)


def _of(module: str, name: str) -> Any:
    """Return what calls a function of a module, which is imported then."""

    def make(*arguments: Any, **options: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **options)

    return make


def _dynamic(network: Network) -> Network:
    return Network(network.make, _IMAGES, dynamic=(0,))


class Heads(nn.Module):
    """A detector's: classes and boxes of RetinaNet over two levels, masks of Mask R-CNN over the first."""

    def __init__(self) -> None:
        super().__init__()
        detection = import_module("torchvision.models.detection")
        self.heads = detection.retinanet.RetinaNetHead(32, 3, 5)
        self.masks = detection.mask_rcnn.MaskRCNNPredictor(32, 16, 5)

    def forward(self, fine: Tensor, coarse: Tensor) -> tuple[Tensor, ...]:
        found = self.heads([fine, coarse])
        return (*found.values(), self.masks(fine))


class Boxes(nn.Module):
    """Boxes that RoI align crops, as many as are given."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.classes = nn.Linear(16 * 4 * 4, 5)

    def forward(self, image: Tensor, boxes: Tensor) -> Tensor:
        align = import_module("torchvision.ops").roi_align
        crops = align(self.features(image).relu(), [boxes], 4, 0.5, 2, True)
        return self.classes(crops.flatten(1))


def _boxes(size: int) -> tuple[Tensor, Tensor]:
    corners = torch.rand(size, 2) * 24
    return torch.randn(1, 3, 64, 64), torch.cat([corners, corners + 30], 1)


def _swin3d() -> nn.Module:
    return _of("torchvision.models.video.swin_transformer", "SwinTransformer3d")(  # type: ignore[no-any-return]
        patch_size=[2, 4, 4],
        embed_dim=24,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[2, 4, 4],
        num_classes=10,
    )


_CLASSES = {"weights": None, "num_classes": 10}

TIMM = {
    "maxvit": _timm("maxvit_rmlp_pico_rw_256", img_size=64),
    "mobilenetv4": _dynamic(_timm("mobilenetv4_conv_small")),
    "convnext": _timm("test_convnext3"),
    "vit": _dynamic(_timm("test_vit", img_size=64)),
    "resnet-t": _timm("resnet10t"),
    "mixer": Network(
        partial(
            _of("timm.models.mlp_mixer", "MlpMixer"),
            num_classes=10,
            img_size=64,
            patch_size=8,
            num_blocks=2,
            embed_dim=64,
        ),
        _IMAGE,
    ),
    "xcit": _timm("xcit_nano_12_p16_224", img_size=64, depth=2),
    "levit": Network(
        partial(_of("timm", "create_model"), "levit_128s", num_classes=10),
        random(1, 3, 224, 224),
    ),
}

TORCHVISION = {
    "mobilenet_v3": _dynamic(
        Network(
            partial(_of("torchvision.models", "mobilenet_v3_small"), **_CLASSES), _IMAGE
        )
    ),
    "shufflenet": _dynamic(
        Network(
            partial(_of("torchvision.models", "shufflenet_v2_x0_5"), **_CLASSES), _IMAGE
        )
    ),
    "lraspp": Network(
        partial(
            _of("torchvision.models.segmentation", "lraspp_mobilenet_v3_large"),
            weights_backbone=None,
            **_CLASSES,
        ),
        _IMAGE,
    ),
    "swin3d": Network(_swin3d, random(1, 3, 4, 32, 32)),
    "detector heads": Network(
        Heads,
        lambda: (torch.randn(1, 32, 16, 16), torch.randn(1, 32, 8, 8)),
        in_sample=True,
    ),
    "RoI align": Network(Boxes, _boxes, dynamic=(None, 0)),
}

SEGMENTATION = {
    name: Network(
        partial(
            _of("segmentation_models_pytorch", name),
            encoder,
            encoder_weights=None,
            classes=3,
        ),
        _IMAGE,
    )
    for name, encoder in (("Segformer", "mit_b0"), ("Unet", "mobilenet_v2"))
}

_SIZES = {"in_channels": 1, "out_channels": 2}


def _monai(name: str, **options: Any) -> Any:
    return partial(_of("monai.networks.nets", name), **_SIZES, **options)


MONAI = {
    "UNet 3D": Network(
        _monai("UNet", spatial_dims=3, channels=(8, 16, 32), strides=(2, 2)),
        random(1, 1, 32, 32, 32),
    ),
    "SegResNet": Network(
        _monai(
            "SegResNet",
            spatial_dims=3,
            init_filters=8,
            blocks_down=(1, 1),
            blocks_up=(1,),
        ),
        batches(1, 16, 16, 16),
        dynamic=(0,),
        sizes=(1, 2, 4),
    ),
    "SwinUNETR": Network(
        _monai(
            "SwinUNETR",
            spatial_dims=2,
            feature_size=12,
            depths=(1, 1, 1, 1),
            num_heads=(1, 1, 2, 2),
        ),
        random(1, 1, 64, 64),
    ),
}
