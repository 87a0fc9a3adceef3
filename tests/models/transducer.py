"""Streaming speech to text: encoder, prediction network and joint network."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from etshared_plugin import EntryPoint

from .case import ModelCase


class Hypothesis(NamedTuple):
    token: Tensor
    duration: Tensor
    log_probabilities: Tensor


class StreamingEncoder(nn.Module):
    """An LSTM over stacked frames that goes on where the last chunk ended."""

    h: Tensor
    c: Tensor

    def __init__(self, n_mels: int, size: int) -> None:
        super().__init__()
        self.subsample = nn.Linear(2 * n_mels, size)
        self.lstm = nn.LSTM(size, size, num_layers=2, batch_first=True)
        self.register_buffer("h", torch.zeros(2, 1, size))
        self.register_buffer("c", torch.zeros(2, 1, size))

    def forward(self, mel: Tensor) -> Tensor:
        batch, frames, n_mels = mel.shape
        x = mel.reshape(batch, frames // 2, 2 * n_mels)
        x, (self.h, self.c) = self.lstm(torch.relu(self.subsample(x)), (self.h, self.c))
        return x


class PredictionNetwork(nn.Module):
    """Keeps its last output too, for frames that give no token."""

    hidden: Tensor
    cell: Tensor
    output: Tensor

    def __init__(self, vocab: int, size: int) -> None:
        super().__init__()
        self.blank = vocab
        self.embed = nn.Embedding(vocab + 1, size, padding_idx=vocab)
        self.cell_rnn = nn.LSTMCell(size, size)
        self.register_buffer("hidden", torch.zeros(1, size))
        self.register_buffer("cell", torch.zeros(1, size))
        self.register_buffer("output", torch.zeros(1, size), persistent=False)

    def forward(self, token: Tensor) -> Tensor:
        hidden, cell = self.cell_rnn(self.embed(token), (self.hidden, self.cell))
        emitted = (token != self.blank).unsqueeze(-1)
        self.hidden = torch.where(emitted, hidden, self.hidden)
        self.cell = torch.where(emitted, cell, self.cell)
        self.output = torch.tanh(self.hidden)
        return self.output


class LanguageModel(nn.Module):
    """A GRU that biases the joint network."""

    def __init__(self, vocab: int, size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab + 1, size)
        self.gru = nn.GRU(size, size, batch_first=True)
        self.project = nn.Linear(size, vocab + 1)
        self.register_buffer("state", torch.zeros(1, 1, size))

    def step(self, token: Tensor) -> None:
        _, state = self.gru(self.embed(token)[:, None], self.state)
        self.state.copy_(state)

    def scores(self) -> Tensor:
        return self.project(self.state[-1])


class JointNetwork(nn.Module):
    def __init__(self, size: int, vocab: int, durations: int) -> None:
        super().__init__()
        self.enc = nn.Linear(size, size)
        self.pred = nn.Linear(size, size)
        self.joint_net = nn.Sequential(
            nn.ReLU(), nn.Dropout(0.2), nn.Linear(size, vocab + 1 + durations)
        )

    def forward(self, encoded: Tensor, predicted: Tensor) -> Tensor:
        f = self.enc(encoded).unsqueeze(2)
        g = self.pred(predicted).unsqueeze(1)
        return self.joint_net(f + g)


class Transducer(nn.Module):
    def __init__(
        self, n_mels: int = 6, size: int = 12, vocab: int = 20, durations: int = 4
    ) -> None:
        super().__init__()
        self.vocab = vocab
        self.encoder = StreamingEncoder(n_mels, size)
        self.decoder = PredictionNetwork(vocab, size)
        self.lm = LanguageModel(vocab, size)
        self.joint = JointNetwork(size, vocab, durations)
        self.register_buffer("emitted", torch.zeros(vocab + 1, dtype=torch.int32))

    def encode(self, mel: Tensor) -> Tensor:
        return self.encoder(mel)

    def predict_step(self, token: Tensor) -> Tensor:
        self.lm.step(token)
        self.emitted.index_add_(0, token, torch.ones_like(token, dtype=torch.int32))
        return self.decoder(token)

    def joint_step(self, frame: Tensor) -> Hypothesis:
        logits = self.joint(frame, self.decoder.output[:, None]).squeeze(2)
        tokens = logits[..., : self.vocab + 1] + 0.3 * self.lm.scores()[:, None]
        durations = logits[..., self.vocab + 1 :]
        log_probabilities = tokens.log_softmax(dim=-1)
        return Hypothesis(
            log_probabilities.argmax(dim=-1), durations.argmax(-1), log_probabilities
        )

    def reset(self) -> None:
        for module in (self.encoder, self.decoder, self.lm):
            for buffer in module.buffers():
                buffer.zero_()
        self.emitted.zero_()

    def emissions(self) -> Tensor:
        return self.emitted


def build() -> ModelCase:
    torch.manual_seed(0)
    model = Transducer().eval()
    tokens = torch.tensor([20])
    return ModelCase(
        model,
        {
            "encode": EntryPoint(model.encode, (torch.randn(1, 4, 6),)),
            "predict_step": EntryPoint(model.predict_step, (tokens,)),
            "joint_step": EntryPoint(model.joint_step, (torch.randn(1, 1, 12),)),
            "reset": EntryPoint(model.reset),
            "emissions": EntryPoint(model.emissions),
        },
        inputs={"predict_step": lambda g: (torch.tensor([g.choice([20, 3, 7, 0])]),)},
        types=(Hypothesis,),
    )
