"""An image classifier for three sizes of image, with running statistics."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etshared_plugin import EntryPoint

from .case import ModelCase


class ConvNormActivation(nn.Sequential):
    def __init__(
        self,
        channels: int,
        out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activation: type[nn.Module] | None = nn.Hardswish,
    ) -> None:
        padding = (kernel - 1) // 2
        layers: list[nn.Module] = [
            nn.Conv2d(
                channels, out, kernel, stride, padding, groups=groups, bias=False
            ),
            nn.BatchNorm2d(out, eps=0.001, momentum=0.01),
        ]
        if activation is not None:
            layers.append(activation())
        super().__init__(*layers)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels: int, squeeze: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeeze, 1)
        self.fc2 = nn.Conv2d(squeeze, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        scale = F.relu(self.fc1(self.avgpool(x)))
        return F.hardsigmoid(self.fc2(scale)) * x


class InvertedResidual(nn.Module):
    def __init__(self, channels: int, expanded: int, out: int, stride: int) -> None:
        super().__init__()
        self.use_res_connect = stride == 1 and channels == out
        self.block = nn.Sequential(
            ConvNormActivation(channels, expanded, 1),
            ConvNormActivation(expanded, expanded, 3, stride, expanded),
            SqueezeExcitation(expanded, 4),
            ConvNormActivation(expanded, out, 1, activation=None),
        )

    def forward(self, x: Tensor) -> Tensor:
        result = self.block(x)
        if self.use_res_connect:
            result += x
        return result


class ImageNet(nn.Module):
    """Normalizes features by statistics of the images that it was shown."""

    feature_mean: Tensor
    feature_var: Tensor

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            ConvNormActivation(3, 8, 3, stride=2),
            InvertedResidual(8, 16, 8, stride=1),
        )
        self.act = nn.PReLU(8)
        self.classifier = nn.Sequential(
            OrderedDict(
                hidden=nn.Linear(8, 16),
                act=nn.Hardswish(inplace=True),
                drop=nn.Dropout(0.2, inplace=True),
                out=nn.Linear(16, classes),
            )
        )
        self.register_buffer("pixel_mean", torch.tensor([0.485, 0.456, 0.406]))
        self.register_buffer("feature_mean", torch.zeros(8))
        self.register_buffer("feature_var", torch.ones(8))
        self.register_buffer("num_images", torch.tensor(0))
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)

    def forward(self, image: Tensor, momentum: float = 0.1) -> dict[str, Tensor]:
        x = (image - self.pixel_mean[:, None, None]) / 0.226
        x = self.act(self.features(x))
        x = torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)
        with torch.no_grad():
            delta = x.mean(0) - self.feature_mean
            self.feature_mean = self.feature_mean + momentum * delta
            self.feature_var = (1 - momentum) * (self.feature_var + momentum * delta**2)
            self.num_images += 1
        embedding = (x - self.feature_mean) * torch.rsqrt(self.feature_var + 1e-5)
        return {"logits": self.classifier(embedding), "embedding": embedding}

    def novelty(self, embedding: Tensor) -> Tensor:
        return torch.linalg.vector_norm(embedding - self.feature_mean, dim=-1)

    def seen(self) -> Tensor:
        return self.num_images


def build() -> ModelCase:
    torch.manual_seed(0)
    model = ImageNet().eval()
    images = {size: torch.rand(1, 3, size, size) for size in (16, 24, 40)}
    return ModelCase(
        model,
        {
            **{
                f"classify_{size}": EntryPoint(model.forward, (image,))
                for size, image in images.items()
            },
            "novelty": EntryPoint(model.novelty, (torch.randn(1, 8),)),
            "seen": EntryPoint(model.seen),
        },
    )
