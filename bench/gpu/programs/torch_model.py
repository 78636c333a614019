"""A ResNet-50 with random weights; torchvision's if it is there, else one of the same layers."""

from __future__ import annotations

import torch
from torch import nn


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and what came in."""

    def __init__(self, wide: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.body = nn.Sequential(
            nn.Conv2d(wide, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(),
            nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.side: nn.Module = nn.Identity()
        if stride != 1 or wide != out:
            self.side = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.side(x))


def resnet50() -> nn.Module:
    try:
        from torchvision.models import resnet50 as theirs

        return theirs(weights=None)
    except ImportError:
        pass
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    wide = 64
    for inner, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(blocks):
            layers.append(Bottleneck(wide, inner, stride if number == 0 else 1))
            wide = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1000))
