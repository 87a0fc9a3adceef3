"""Learning from single observations: a linear bandit and a network with a target."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from etshared_plugin import EntryPoint

from .case import ModelCase


class LinearBandit(nn.Module):
    """Upper confidence bounds; the inverses are updated by rank one."""

    def __init__(self, arms: int = 3, features: int = 4, alpha: float = 0.7) -> None:
        super().__init__()
        self.alpha = alpha
        self.register_buffer("inverse", torch.eye(features).repeat(arms, 1, 1))
        self.register_buffer("rewards", torch.zeros(arms, features))
        self.register_buffer("pulls", torch.zeros(arms, dtype=torch.int64))

    def scores(self, context: Tensor) -> Tensor:
        theta = (self.inverse @ self.rewards.unsqueeze(-1)).squeeze(-1)
        width = torch.einsum("f,afg,g->a", context, self.inverse, context)
        return theta @ context + self.alpha * width.clamp_min(0).sqrt()

    def select(self, context: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores(context)
        return scores.argmax(), scores

    def update(self, arm: Tensor, context: Tensor, reward: Tensor) -> None:
        """Learn from one reward; arm is int64[1]."""
        inverse = self.inverse[arm]
        v = inverse @ context
        change = v.unsqueeze(-1) * v.unsqueeze(-2)
        self.inverse[arm] = inverse - change / (1 + v @ context)[:, None, None]
        self.rewards[arm] += reward * context
        self.pulls[arm] += 1


class TargetNetwork(nn.Module):
    """Values of actions, learned towards those of a network that follows slowly."""

    def __init__(self, observations: int = 4, actions: int = 3) -> None:
        super().__init__()

        def network() -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(observations, 8), nn.Tanh(), nn.Linear(8, actions)
            )

        self.online, self.target = network(), network()
        self.target.load_state_dict(self.online.state_dict())
        self.target.requires_grad_(False)
        self.register_buffer("error", torch.zeros(()))

    @torch.no_grad()
    def act(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        values = self.online(observation)
        return values.argmax(dim=-1), values

    @torch.no_grad()
    def learn(self, before: Tensor, action: Tensor, reward: Tensor, after: Tensor):  # noqa: ANN201
        """Take one step of gradient descent on the last layer."""
        hidden = self.online[1](self.online[0](before))
        last = self.online[2]
        value = last(hidden).gather(1, action[:, None])
        expected = reward[:, None] + 0.9 * self.target(after).amax(1, keepdim=True)
        difference = (value - expected).clamp(-1, 1)
        gradient = torch.zeros_like(last.bias).index_add_(0, action, difference[:, 0])
        last.weight.sub_(0.1 * torch.outer(gradient, hidden[0]))
        last.bias.sub_(0.1 * gradient)
        self.error.lerp_(difference.abs().mean(), 0.25)
        return self.error

    @torch.no_grad()
    def soft_update(self, tau: Tensor) -> None:
        pairs = zip(self.target.parameters(), self.online.parameters(), strict=True)
        for slow, fast in pairs:
            slow.mul_(1 - tau).add_(tau * fast)

    @torch.no_grad()
    def synchronize(self) -> None:
        for slow, fast in zip(
            self.target.parameters(), self.online.parameters(), strict=True
        ):
            slow.copy_(fast)


def build() -> ModelCase:
    torch.manual_seed(0)
    model = LinearBandit().eval()
    context = torch.randn(4)

    def observation(generator: random.Random) -> tuple[Tensor, ...]:
        arm, reward = generator.randrange(3), generator.random()
        return torch.tensor([arm]), torch.randn(4), torch.tensor(reward)

    return ModelCase(
        model,
        {
            "select": EntryPoint(model.select, (context,)),
            "update": EntryPoint(
                model.update, (torch.tensor([1]), context, torch.tensor(0.5))
            ),
        },
        inputs={"update": observation},
    )


def build_target_network() -> ModelCase:
    torch.manual_seed(0)
    model = TargetNetwork().eval()
    x, reward = torch.randn(1, 4), torch.tensor([0.5])

    def transition(generator: random.Random) -> tuple[Tensor, ...]:
        action = torch.tensor([generator.randrange(3)])
        return torch.randn(1, 4), action, torch.randn(1), torch.randn(1, 4)

    return ModelCase(
        model,
        {
            "act": EntryPoint(model.act, (x,)),
            "learn": EntryPoint(model.learn, (x, torch.tensor([2]), reward, x + 1)),
            "soft_update": EntryPoint(model.soft_update, (torch.tensor(0.05),)),
            "synchronize": EntryPoint(model.synchronize),
        },
        inputs={"learn": transition},
    )
