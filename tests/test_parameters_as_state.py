"""Parameters that entry points change."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import pytest
import torch
from eager_comparison import assert_equals_eager, call, lower
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint, export
from etshared_plugin.errors import StateError

Partitioners = Sequence[Partitioner]


def _network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    )


class Agent(nn.Module):
    """A network and one that follows it; half of its parameters are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.online = _network().requires_grad_(False)
        self.target = _network()

    def act(self, x: Tensor) -> Tensor:
        return self.online(x)

    def evaluate(self, x: Tensor) -> Tensor:
        return self.target(x)

    def sync(self) -> None:
        with torch.no_grad():
            for t, o in zip(
                self.target.parameters(), self.online.parameters(), strict=True
            ):
                t.copy_(o)

    def soft_update(self, tau: Tensor) -> Tensor:
        difference = self.target[3].weight - self.online[3].weight
        for t, o in zip(
            self.target.parameters(), self.online.parameters(), strict=True
        ):
            t.mul_(1 - tau).add_(tau * o)
        return difference

    def learn(self, x: Tensor, step: Tensor) -> Tensor:
        error = self.target(x) - self.online(x)
        self.online[3].bias.data += step * error[0]
        self.online[3].weight.data.sub_(step)
        return error


def test_a_network_follows_another(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Agent()
    x, tau = torch.randn(1, 2, 4), torch.tensor(0.25)
    entry_points = {
        "evaluate": EntryPoint(model.evaluate, (x,)),
        "act": EntryPoint(model.act, (x,)),
        "sync": EntryPoint(model.sync),
        "soft_update": EntryPoint(model.soft_update, (tau,)),
        "learn": EntryPoint(model.learn, (x, tau)),
    }
    reads = [call("evaluate", x), call("act", x)]
    program = assert_equals_eager(
        model,
        entry_points,
        [
            *reads,
            call("soft_update", tau),
            *reads,
            call("learn", x, tau),
            *reads,
            call("sync"),
            *reads,
            call("learn", -x, 2 * tau),
            call("soft_update", 3 * tau),
            *reads,
        ],
        partitioner,
    )
    assert set(program.session().state) == {
        "target.0.weight",
        "target.0.bias",
        "target.3.weight",
        "target.3.bias",
        "online.3.weight",
        "online.3.bias",
    }


class Adapted(nn.Module):
    """A layer with low-rank adapters that are merged into it and taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.a = nn.Parameter(torch.randn(2, 4))
        self.b = nn.Parameter(torch.randn(4, 2))
        self.register_buffer("merged", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        adapted = x @ self.a.T @ self.b.T
        return self.layer(x) + torch.where(self.merged > 0, 0.0, 1.0) * adapted

    def merge(self) -> None:
        self.layer.weight.data += self.b @ self.a
        self.merged += 1

    def unmerge(self) -> None:
        self.layer.weight.data = self.layer.weight.data - self.b @ self.a
        self.merged.zero_()

    def set_adapter(self, a: Tensor, b: Tensor) -> None:
        self.a.copy_(a)
        self.b = nn.Parameter(b)


def test_adapters_are_merged_and_exchanged(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Adapted()
    x, a, b = torch.randn(3, 4), torch.randn(2, 4), torch.randn(4, 2)
    assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (x,)),
            "merge": EntryPoint(model.merge),
            "unmerge": EntryPoint(model.unmerge),
            "set_adapter": EntryPoint(model.set_adapter, (a, b)),
        },
        [
            call("forward", x),
            call("merge"),
            call("forward", x),
            call("unmerge"),
            call("set_adapter", a, b),
            call("forward", x),
            call("merge"),
            call("forward", 2 * x),
            call("merge"),
            call("forward", x),
        ],
        partitioner,
    )


class Language(nn.Module):
    """Input and output layer are one parameter; a list holds others."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.rnn = nn.GRU(4, 4)
        self.gains = [nn.Parameter(torch.ones(4)), self.head.weight]
        self.gain = self.gains[0]

    def forward(self, token: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(token))[0] * self.gain)

    def teach(self, token: Tensor, vector: Tensor) -> None:
        self.embedding.weight[token] = vector

    def prune(self, mask: Tensor) -> Tensor:
        self.head.weight.masked_fill_(mask, 0)
        for parameter in self.rnn.parameters():
            parameter.mul_(0.5)
        return self.embedding.weight.sum()

    def scale(self, gain: Tensor) -> Tensor:
        for parameter in self.gains:
            parameter.mul_(gain)
        return self.gains[0] + self.head.weight[0]


def test_tied_and_listed_parameters_are_state(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Language()
    tokens = torch.tensor([[1, 4, 0]])
    token, vector = torch.tensor([2]), torch.ones(1, 4)
    mask, gain = torch.rand(5, 4) > 0.5, torch.tensor([0.5, 2.0, 1.0, -1.0])
    program = assert_equals_eager(
        model,
        {
            "forward": EntryPoint(model.forward, (tokens,)),
            "teach": EntryPoint(model.teach, (token, vector)),
            "prune": EntryPoint(model.prune, (mask,)),
            "scale": EntryPoint(model.scale, (gain,)),
        },
        [
            call("forward", tokens),
            call("teach", token + 2, vector),
            call("forward", tokens),
            call("scale", gain),
            call("forward", tokens),
            call("prune", mask),
            call("forward", 4 - tokens),
            call("scale", -gain),
            call("forward", tokens),
        ],
        partitioner,
    )
    session = program.session()
    assert torch.equal(session.state["head.weight"], model.embedding.weight.detach())


class Exchanged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor([1.0, 2.0]))
        self.q = nn.Parameter(torch.tensor([3.0, 4.0]), requires_grad=False)
        self.register_buffer("h", torch.tensor([5.0, 6.0]))

    def swap_data(self) -> tuple[Tensor, Tensor]:
        held = self.p.data
        self.p.data = self.q.data
        self.q.data = held
        return self.p, self.q * 2

    def swap(self) -> None:
        self.p, self.q = self.q, self.p

    def into_buffer(self) -> Tensor:
        self.h.copy_(self.p)
        self.h.data[0] += 1
        return self.h

    def vector(self, x: Tensor) -> Tensor:
        old = nn.utils.parameters_to_vector([self.p, self.q])
        nn.utils.vector_to_parameters(x, [self.p, self.q])
        return old + self.p[0]

    def get(self) -> list[Tensor]:
        return [self.p, self.q, self.h]


def test_parameters_are_exchanged(partitioner: Partitioners) -> None:
    model = Exchanged()
    x = torch.arange(4.0)
    names = ["swap_data", "into_buffer", "swap", "vector", "get"]
    entry_points = {n: EntryPoint(getattr(model, n)) for n in names}
    entry_points["vector"] = EntryPoint(model.vector, (x,))
    calls = [
        call(name, *([x + step] if name == "vector" else []))
        for step, name in enumerate([*names, *names, *names[::-1]])
    ]
    assert_equals_eager(model, entry_points, calls, partitioner)


def test_a_parameter_that_nothing_writes_is_state_by_its_name(
    partitioner: Partitioners,
) -> None:
    torch.manual_seed(0)
    model = Adapted()
    x = torch.randn(3, 4)
    data = lower(
        model,
        {"forward": EntryPoint(model.forward, (x,))},
        partitioner,
        state=["layer.weight", "a"],
    )
    session = etshared.load(data, tensors="torch").session()
    assert set(session.state) == {"layer.weight", "a"}
    model.layer.weight.data.neg_()
    model.a.data.zero_()
    session.state["layer.weight"] = model.layer.weight
    session.state["a"] = model.a
    torch.testing.assert_close(session.forward(x), model(x).detach())


def test_globs_are_not_for_parameters_that_nothing_writes() -> None:
    model = Agent()
    x, tau = torch.randn(1, 2, 4), torch.tensor(0.5)
    entry_points = {
        "act": EntryPoint(model.act, (x,)),
        "learn": EntryPoint(model.learn, (x, tau)),
    }
    state = export(model, entry_points, state=["online.*"]).state
    assert list(state) == ["online.3.bias", "online.3.weight"]
    with pytest.raises(StateError, match="'target.*' matches no buffer.* in full"):
        export(model, entry_points, state=["online.*", "target.*"])
    with pytest.raises(StateError, match="'learn' writes .*'online.3.weight', which"):
        export(model, entry_points, state=["online.3.bias"])


def test_parameters_of_the_module_are_left_as_they_were() -> None:
    model = Language()
    model.gain.grad = torch.ones(4)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    values = copy.deepcopy(parameters)
    versions = {name: p._version for name, p in parameters.items()}
    flat_weights = list(model.rnn._flat_weights)
    gain = torch.ones(4)
    exported = export(model, {"scale": EntryPoint(model.scale, (gain,))})
    assert list(exported.state) == ["embedding.weight", "gain"]
    after = dict(model.named_parameters(remove_duplicate=False))
    assert list(after) == list(parameters)
    for name, parameter in after.items():
        assert parameter is parameters[name]
        assert parameter.requires_grad
        assert parameter._version == versions[name]
        assert torch.equal(parameter, values[name])
    assert torch.equal(model.gain.grad, torch.ones(4))
    assert all(
        a is b for a, b in zip(model.rnn._flat_weights, flat_weights, strict=True)
    )


def test_a_parameter_keeps_its_shape() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            self.p.data = torch.cat([self.p.data, x])
            return self.p

    model = Growing()
    message = r"'forward' changes 'p' from float32\[2\] to float32\[4\]"
    with pytest.raises(StateError, match=message):
        export(model, {"forward": EntryPoint(model.forward, (torch.ones(2),))})
