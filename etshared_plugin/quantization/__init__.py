"""Quantization of several entry points as one model.

Needs torch and torchao.
"""

from .pt2e import quantize

__all__ = ["quantize"]
