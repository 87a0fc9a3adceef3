"""Prefill and decode, encoder and decoder, streaming, threads: whole models."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch
from eager_comparison import assert_equals_eager, call, lower
from executorch.exir.backend.partitioner import Partitioner
from torch import Tensor, nn

import etshared_plugin as etshared
from etshared_plugin import EntryPoint

Partitioners = Sequence[Partitioner]


class Attention(nn.Module):
    """A cache of keys that prefill and decode write at a position of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.register_buffer("k", torch.zeros(1, 16, 4))
        self.register_buffer("pos", torch.zeros(1, dtype=torch.int64))

    def prefill(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        self.k.index_copy_(1, self.pos + torch.arange(length), x)
        self.pos += length
        return self.k.sum()

    def decode(self, x: Tensor) -> Tensor:
        self.k.index_copy_(1, self.pos, x)
        self.pos += 1
        scores = torch.softmax(self.project(x) @ self.k.transpose(1, 2), dim=-1)
        return torch.cat([(scores @ self.k).flatten(), self.k.sum()[None]])

    def position(self) -> Tensor:
        return self.pos

    def clear(self) -> None:
        self.k.zero_()
        self.pos.zero_()


def test_prefill_and_decode_use_one_cache(partitioner: Partitioners) -> None:
    model = Attention()
    prompt = torch.ones(1, 5, 4)
    token = torch.ones(1, 1, 4)
    program = assert_equals_eager(
        model,
        {
            "prefill": EntryPoint(
                model.prefill,
                (prompt,),
                dynamic_shapes={"x": {1: torch.export.Dim("length", max=15)}},
            ),
            "decode": EntryPoint(model.decode, (token,)),
            "position": EntryPoint(model.position),
            "clear": EntryPoint(model.clear),
        },
        [
            call("prefill", prompt),
            call("decode", token),
            call("position"),
            call("decode", 2 * token),
            call("prefill", -prompt[:, :3]),
            call("position"),
            call("clear"),
            call("prefill", prompt[:, :2]),
            call("decode", token),
        ],
        partitioner,
    )
    session = program.session()
    assert session.prefill(prompt) == 20
    assert session.decode(token)[-1] == 24
    assert session.position() == 6
    assert program.context is not None
    shared = sum(buffer.nbytes for buffer in program.context.buffers)
    state_arena = program.context.buffers[0].mem_id
    arenas = {arena.mem_id: arena.nbytes for arena in program.context.arenas}
    assert shared == 16 * 4 * 4 + 8
    assert arenas[state_arena] < 2 * 16 * 4 * 4


class Transducer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Conv1d(3, 8, 3, padding=1)
        self.lstm = nn.LSTM(8, 8, num_layers=2)
        self.joint = nn.Linear(8, 5)
        self.register_buffer("h", torch.zeros(2, 1, 8))
        self.register_buffer("c", torch.zeros(2, 1, 8))

    def encode(self, audio: Tensor) -> Tensor:
        return torch.relu(self.encoder(audio))

    def decoder_step(self, frame: Tensor) -> Tensor:
        out, (self.h, self.c) = self.lstm(frame, (self.h, self.c))
        return self.joint(out)

    def reset(self) -> None:
        self.h.zero_()
        self.c.zero_()


def test_an_lstm_steps_over_what_an_encoder_made(partitioner: Partitioners) -> None:
    torch.manual_seed(0)
    model = Transducer().eval()
    audio, frames = torch.randn(1, 3, 6), torch.randn(4, 1, 1, 8)
    steps = [call("decoder_step", frame) for frame in frames]
    program = assert_equals_eager(
        model,
        {
            "encode": EntryPoint(model.encode, (audio,)),
            "decoder_step": EntryPoint(model.decoder_step, (frames[0],)),
            "reset": EntryPoint(model.reset),
        },
        [*steps[:3], call("encode", audio), steps[3], call("reset"), *steps],
        partitioner,
    )
    session = program.session()
    encoded = session.encode(audio)
    with torch.no_grad():
        for frame in encoded.permute(2, 0, 1)[:, None]:
            torch.testing.assert_close(
                session.decoder_step(frame.contiguous()), model.decoder_step(frame)
            )


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(4))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        return x + 1, x * 10

    def decode(self, p: Tensor, q: Tensor) -> Tensor:
        self.calls += 2
        return p - q

    def forward(self, x: Tensor) -> Tensor:
        return x + self.calls


@pytest.fixture(scope="module")
def pair() -> etshared.SharedProgram:
    model = Pair()
    x = torch.zeros(4)
    data = lower(
        model,
        {
            "encode": EntryPoint(model.encode, (x,)),
            "decode": EntryPoint(model.decode, (x, x)),
            "forward": EntryPoint(model.forward, (x,)),
        },
    )
    return etshared.load(data, tensors="torch")


def test_outputs_may_be_given_straight_to_another_entry_point(
    pair: etshared.SharedProgram,
) -> None:
    session = pair.session()
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    first, second = session.encode(x)
    assert session.decode(second, first).tolist() == [8.0, 17.0, 26.0, 35.0]
    assert session.decode(second, first).tolist() == [8.0, 17.0, 26.0, 35.0]


def test_an_output_outlives_other_calls_and_the_session(
    pair: etshared.SharedProgram,
) -> None:
    session = pair.session()
    x = torch.arange(4.0)
    y = session.forward(x)
    session.encode(x - 7)
    session.decode(x, 3 * x)
    session.forward(-x)
    session.reset()
    del session
    assert torch.equal(y, x)


def test_two_threads_may_call_one_session(pair: etshared.SharedProgram) -> None:
    session = pair.session()
    wrong: list[object] = []

    def encode() -> None:
        for step in range(2000):
            x = torch.full((4,), float(step))
            first, second = session.encode(x)
            if not (torch.equal(first, x + 1) and torch.equal(second, x * 10)):
                wrong.append((step, first, second))

    def decode() -> None:
        for step in range(2000):
            p, q = torch.full((4,), float(step)), torch.full((4,), step / 2)
            if not torch.equal(session.decode(p, q), q):
                wrong.append(step)

    threads = [threading.Thread(target=one) for one in (encode, decode)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert torch.equal(session.state["calls"], torch.full((4,), 6000.0))


class Rows(nn.Module):
    """Updates one row of a cache."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(rows, 1024))

    def step(self, pos: Tensor, x: Tensor) -> None:
        self.cache.index_copy_(0, pos, x)

    def set(self, pos: Tensor, x: Tensor) -> None:
        self.cache[pos] = x

    def row(self, pos: Tensor) -> Tensor:
        return self.cache.index_select(0, pos)


@pytest.mark.parametrize("write", ["step", "set"])
def test_other_rows_of_a_cache_keep_their_values(
    partitioner: Partitioners, write: str
) -> None:
    model = Rows(4)
    x = torch.ones(1, 1024)
    positions = [torch.tensor([row]) for row in range(4)]
    assert_equals_eager(
        model,
        {
            write: EntryPoint(getattr(model, write), (positions[1], x)),
            "row": EntryPoint(model.row, (positions[0],)),
        },
        [
            call(write, positions[2], 2 * x),
            *(call("row", position) for position in positions),
            call(write, positions[0], 3 * x),
            call(write, positions[2], 4 * x),
            *(call("row", position) for position in positions),
        ],
        partitioner,
    )
