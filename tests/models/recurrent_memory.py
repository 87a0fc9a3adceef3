"""Recurrent language models whose state is a matrix for each head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from etshared_plugin import EntryPoint

from .case import ModelCase


class SelectiveStateSpace(nn.Module):
    """One token at a time: a short convolution, then a selective scan."""

    conv_state: Tensor
    ssm_state: Tensor

    def __init__(self, size: int, d_state: int = 4, d_conv: int = 4) -> None:
        super().__init__()
        inner, self.dt_rank, self.d_state = 2 * size, 3, d_state
        self.in_proj = nn.Linear(size, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(
            inner, inner, d_conv, groups=inner, padding=d_conv - 1, bias=True
        )
        self.x_proj = nn.Linear(inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, inner)
        rates = torch.arange(1, d_state + 1, dtype=torch.float32).repeat(inner, 1)
        self.A_log = nn.Parameter(torch.log(rates))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, size, bias=False)
        self.register_buffer("conv_state", torch.zeros(1, inner, d_conv))
        self.register_buffer("ssm_state", torch.zeros(1, inner, d_state))

    def step(self, hidden_states: Tensor) -> Tensor:
        x, z = self.in_proj(hidden_states).chunk(2, dim=-1)
        self.conv_state.copy_(torch.roll(self.conv_state, shifts=-1, dims=-1))
        self.conv_state[:, :, -1] = x
        kernel = self.conv1d.weight[:, 0]
        x = F.silu(torch.sum(self.conv_state * kernel, dim=-1) + self.conv1d.bias)
        dt, b, c = torch.split(
            self.x_proj(x), [self.dt_rank, self.d_state, self.d_state], dim=-1
        )
        dt = F.softplus(self.dt_proj(dt))
        decay = torch.exp(torch.einsum("bd,dn->bdn", dt, -torch.exp(self.A_log)))
        gain = torch.einsum("bd,bn->bdn", dt, b)
        self.ssm_state.copy_(self.ssm_state * decay + x.unsqueeze(-1) * gain)
        y = torch.einsum("bdn,bn->bd", self.ssm_state, c) + self.D * x
        return self.out_proj(y * F.silu(z))

    def scan(self, hidden_states: Tensor) -> Tensor:
        steps = [self.step(h) for h in hidden_states.unbind(dim=1)]
        return torch.stack(steps, dim=1)


class DeltaMemory(nn.Module):
    """Linear attention that corrects what it has stored under a key."""

    def __init__(self, size: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(size, 3 * size)
        self.beta = nn.Linear(size, heads)
        self.decay = nn.Parameter(torch.full((heads, 1, 1), 2.0))
        head = size // heads
        self.register_buffer("memory", torch.zeros(1, heads, head, head))

    def step(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(1, 3, self.heads, -1).unbind(1)
        k = F.normalize(k, dim=-1)
        self.memory *= torch.sigmoid(self.decay)
        stored = torch.einsum("bhkv,bhk->bhv", self.memory, k)
        change = torch.sigmoid(self.beta(x)).unsqueeze(-1) * (v - stored)
        self.memory += k.unsqueeze(-1) * change.unsqueeze(-2)
        return (q.unsqueeze(-2) @ self.memory).flatten(1)

    def scan(self, hidden_states: Tensor) -> Tensor:
        return torch.stack([self.step(h) for h in hidden_states.unbind(1)], dim=1)


class Block(nn.Module):
    def __init__(self, size: int, mixer: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.mixer = mixer


class RecurrentLM(nn.Module):
    def __init__(self, vocab: int = 24, size: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, size)
        mixers = [SelectiveStateSpace(size), DeltaMemory(size)]
        self.blocks = nn.ModuleList([Block(size, mixer) for mixer in mixers])
        self.head = nn.Linear(size, vocab, bias=False)
        self.register_buffer("saved", torch.zeros(1, 2, size // 2, size // 2))

    def prefill(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block.mixer.scan(block.norm(x))
        return self.head(x[:, -1])

    def decode(self, token: Tensor) -> Tensor:
        x = self.embedding(token)
        for block in self.blocks:
            x = x + block.mixer.step(block.norm(x))
        return self.head(x)

    def swap(self) -> None:
        """Exchange the second layer's memory with the one that was set aside."""
        memory = self.blocks[1].mixer.memory
        other = self.saved.clone()
        self.saved.copy_(memory)
        memory.copy_(other)


def build() -> ModelCase:
    torch.manual_seed(0)
    model = RecurrentLM().eval()
    return ModelCase(
        model,
        {
            "prefill": EntryPoint(model.prefill, (torch.tensor([[1, 23]]),)),
            "decode": EntryPoint(model.decode, (torch.tensor([7]),)),
            "swap": EntryPoint(model.swap),
        },
        inputs={"decode": lambda generator: (torch.tensor([generator.randrange(24)]),)},
    )
