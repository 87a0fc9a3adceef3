"""Python values in a module that an entry point changes, whatever holds them."""

from __future__ import annotations

import array
import copy
import functools
import io
import itertools
import logging
import pathlib
import random
import types
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from eager_comparison import assert_equals_eager, call
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint
from etshared_plugin.errors import EntryPointError


class Slots:
    __slots__ = ("__hidden", "n", "unset")

    def __init__(self) -> None:
        self.n = 0
        self.__hidden = 0

    def tick(self) -> int:
        self.n += 1
        self.unset = self.__hidden = 3
        return self.n

    def look(self) -> list[Any]:
        return [self.n, self.__hidden, hasattr(self, "unset")]


class Counter:
    total: ClassVar[int] = 0

    def __init__(self) -> None:
        self.n = 0

    def tick(self) -> int:
        self.n += 1
        return self.n


class Words(list[str]):
    count = 0


def _drawn(generator: random.Random) -> float:
    return copy.deepcopy(generator).random()


def add_one(holder: list[int]) -> int:
    holder[0] += 1
    return holder[0]


def append(words: Words) -> int:
    words.count += 1
    return words.count


#: What a module has as an attribute, a change of it that gives a number, and what
#: tells whether it changed.
HOLDERS: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Any]] = {
    "slots": (Slots, Slots.tick, Slots.look),
    "array": (lambda: array.array("i", [0]), add_one, list),
    "bytearray": (lambda: bytearray(2), add_one, bytes),
    "text": (lambda: io.StringIO("ab"), lambda o: o.write("xyz"), io.StringIO.getvalue),
    "random": (lambda: random.Random(0), random.Random.random, _drawn),
    "generator": (lambda: np.random.default_rng(0), lambda o: o.random(), _drawn),
    "mt19937": (
        lambda: np.random.Generator(np.random.MT19937(0)),
        lambda o: o.random(),
        _drawn,
    ),
    "random_state": (
        lambda: np.random.RandomState(0),
        lambda o: o.rand(),
        lambda o: copy.deepcopy(o).rand(),
    ),
    "empty_set": (set, lambda o: o.add(1) or 1, sorted),
    "count": (itertools.count, next, lambda o: next(copy.deepcopy(o))),
    "list_iterator": (lambda: iter([1, 2, 3]), next, lambda o: list(copy.deepcopy(o))),
    "partial": (
        lambda: functools.partial(add_one, [0]),
        lambda o: o(),
        lambda o: o.args[0][0],
    ),
    "method": (lambda: Counter().tick, lambda o: o(), lambda o: o.__self__.n),
    "attribute_of_list": (Words, append, vars),
    "key": (
        lambda: {Counter(): 1},
        lambda o: next(iter(o)).tick(),
        lambda o: next(iter(o)).n,
    ),
    "frozenset": (
        lambda: frozenset([Counter()]),
        lambda o: next(iter(o)).tick(),
        lambda o: next(iter(o)).n,
    ),
    "proxy": (
        lambda: types.MappingProxyType({"a": [0]}),
        lambda o: add_one(o["a"]),
        lambda o: o["a"][0],
    ),
    "objects": (lambda: np.array([0], dtype=object), add_one, list),
}


class Holder(nn.Module):
    total: ClassVar[int] = 0

    def __init__(self, held: object, use: Callable[[Any], float]) -> None:
        super().__init__()
        self.register_buffer("h", torch.ones(3))
        self.held = held
        self.use = use

    def change(self, x: Tensor) -> Tensor:
        self.h.add_(x)
        return self.h * self.use(self.held)

    def fail(self, x: Tensor) -> Tensor:
        self.use(self.held)
        raise KeyError(x)

    def count(self, x: Tensor) -> Tensor:
        type(self).total += 1
        return x * self.total

    def ignore(self, x: Tensor) -> Tensor:
        self.h.add_(x)
        return self.h * 2


@pytest.mark.parametrize("kind", HOLDERS)
def test_changes_of_objects_are_refused_and_undone(kind: str) -> None:
    make, use, look = HOLDERS[kind]
    model = Holder(make(), use)
    held = look(model.held)
    x = torch.ones(3)
    with pytest.raises(EntryPointError, match=r"'change' changes 'held', which is no"):
        etshared.export(model, {"change": EntryPoint(model.change, (x,))})
    assert look(model.held) == held
    with pytest.raises(EntryPointError, match="'fail'"):
        etshared.export(model, {"fail": EntryPoint(model.fail, (x,))})
    assert look(model.held) == held
    attributes = dict(vars(model))
    assert etshared.export(model, {"ignore": EntryPoint(model.ignore, (x,))})
    assert {name: id(one) for name, one in vars(model).items()} == {
        name: id(one) for name, one in attributes.items()
    }
    assert look(model.held) == held
    assert torch.equal(model.h, torch.ones(3))


def test_a_stream_that_is_closed_is_noticed() -> None:
    model = Holder(io.StringIO("ab"), lambda stream: stream.close() or 1)
    entry_point = EntryPoint(model.change, (torch.ones(3),))
    with pytest.raises(EntryPointError, match="'change' changes 'held', which is no"):
        etshared.export(model, {"change": entry_point})


class SharedSlot(Slots):
    __slots__ = ("n",)


class Rewound(nn.Module):
    """Holds what only a copy can stand for, in several places."""

    serial = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = itertools.count()
        self.pair = (itertools.count(), "pair")
        self.slotted = SharedSlot()

    def forward(self, x: Tensor) -> Tensor:
        next(self.second)
        next(self.pair[0])
        next(self.serial)
        self.slotted.n += 1
        return x

    def number(self, x: Tensor) -> Tensor:
        return x + next(self.serial)


def test_all_that_a_copy_stands_for_is_put_back() -> None:
    model = Rewound()
    with pytest.raises(EntryPointError, match="'forward' changes 'first', which"):
        etshared.export(model, {"forward": EntryPoint(model.forward, (torch.ones(1),))})
    assert model.first is model.second
    assert [next(model.first), next(model.pair[0]), next(Rewound.serial)] == [0, 0, 0]
    assert model.pair[1] == "pair"
    assert model.slotted.n == 0
    with pytest.raises(EntryPointError, match=r"'number' changes 'Rewound\.serial'"):
        etshared.export(model, {"number": EntryPoint(model.number, (torch.ones(1),))})
    assert next(Rewound.serial) == 1


class Located(nn.Module):
    """Holds what remembers answers in itself."""

    def __init__(self) -> None:
        super().__init__()
        self.log = logging.getLogger("tests.of.a.model")
        self.path = pathlib.PurePath("a") / "b"

    def forward(self, x: Tensor) -> Tensor:
        self.log.debug("at %s", self.path)
        return x * len(str(self.path))


def test_loggers_and_paths_may_be_held_and_used() -> None:
    model, x = Located(), torch.ones(3)
    entry_point = EntryPoint(model.forward, (x,))
    assert_equals_eager(model, {"forward": entry_point}, [call("forward", x)])


def test_changes_of_a_class_are_refused_and_undone() -> None:
    model = Holder(None, bool)
    with pytest.raises(EntryPointError, match=r"'count' changes 'Holder\.total'"):
        etshared.export(model, {"count": EntryPoint(model.count, (torch.ones(3),))})
    assert Holder.total == 0
