"""Silero VAD for 16 kHz audio: is there speech in this chunk?

The network is written here as a plain ``nn.Module``; its weights are
those of the TorchScript program in PyPI's ``silero-vad``, which is also what its
results are compared with.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SAMPLE_RATE = 16_000
CHUNK_SAMPLES = 512
CONTEXT_SAMPLES = 64

_FRAME_SAMPLES = 256
_HOP_SAMPLES = 128
_FREQUENCIES = _FRAME_SAMPLES // 2 + 1
_HIDDEN = 128

_REFERENCE_NAMES = {
    "stft_conv.weight": "_model.stft.forward_basis_buffer",
    "conv1": "_model.encoder.0.reparam_conv",
    "conv2": "_model.encoder.1.reparam_conv",
    "conv3": "_model.encoder.2.reparam_conv",
    "conv4": "_model.encoder.3.reparam_conv",
    "lstm_cell": "_model.decoder.rnn",
    "final_conv": "_model.decoder.decoder.2",
}


class StreamingVad(nn.Module):
    """Tell speech from silence, chunk by chunk.

    What the model remembers between chunks is in two buffers: ``state`` (hidden
    and cell state of the LSTM) and ``context`` (the last samples of the previous
    chunk).
    """

    state: Tensor
    context: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(
            1, 2 * _FREQUENCIES, _FRAME_SAMPLES, stride=_HOP_SAMPLES, bias=False
        )
        self.conv1 = nn.Conv1d(_FREQUENCIES, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, _HIDDEN)
        self.final_conv = nn.Conv1d(_HIDDEN, 1, 1)
        self.register_buffer("state", torch.zeros(2, 1, _HIDDEN), persistent=False)
        self.register_buffer(
            "context", torch.zeros(1, CONTEXT_SAMPLES), persistent=False
        )

    def forward(self, chunk: Tensor) -> Tensor:
        """Return the probability of speech in ``chunk`` and advance.

        Args:
            chunk: float32 samples in [-1, 1], of shape ``(1, CHUNK_SAMPLES)``.
        """
        probability, state = self._infer(chunk)
        self.state.copy_(state)
        self.context.copy_(chunk[:, -CONTEXT_SAMPLES:])
        return probability

    def peek(self, chunk: Tensor) -> Tensor:
        """Return what ``forward`` would return, without advancing."""
        probability, _ = self._infer(chunk)
        return probability

    def reset(self) -> None:
        """Forget everything that was heard."""
        self.state.zero_()
        self.context.zero_()

    def _infer(self, chunk: Tensor) -> tuple[Tensor, Tensor]:
        samples = torch.cat([self.context, chunk], dim=1)
        samples = F.pad(samples, (0, CONTEXT_SAMPLES), mode="reflect")
        spectrum = self.stft_conv(samples.unsqueeze(1))
        real, imaginary = spectrum[:, :_FREQUENCIES], spectrum[:, _FREQUENCIES:]
        features = torch.sqrt(real * real + imaginary * imaginary)
        for conv in (self.conv1, self.conv2, self.conv3, self.conv4):
            features = torch.relu(conv(features))
        hidden, cell = self.lstm_cell(
            features.squeeze(-1), (self.state[0], self.state[1])
        )
        logit = self.final_conv(torch.relu(hidden).unsqueeze(-1))
        return torch.sigmoid(logit).squeeze(-1), torch.stack([hidden, cell])


def load_model() -> StreamingVad:
    """Return the model with the weights of the installed ``silero-vad``."""
    weights = load_reference().state_dict()
    model = StreamingVad()
    model.load_state_dict(
        {name: weights[_reference_name(name)] for name in model.state_dict()}
    )
    return model.eval()


def load_reference() -> torch.jit.ScriptModule:
    """Return the original program: ``reference(chunk, SAMPLE_RATE)``."""
    # Importing silero_vad would set torch's thread count for the whole process.
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "silero-vad is not installed; pip install 'etshared-plugin[demo]'",
            name="silero_vad",
        )
    path = Path(spec.origin).with_name("data") / "silero_vad.jit"
    return torch.jit.load(str(path)).eval()


def _reference_name(name: str) -> str:
    for ours, theirs in _REFERENCE_NAMES.items():
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    raise KeyError(name)
