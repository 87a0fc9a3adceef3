"""Models as people write them match eager over mixed calls, in both runtimes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackPartitioner,
)
from executorch.exir.backend.partitioner import Partitioner
from models import (
    bandit,
    encoder_decoder,
    llama_example,
    recurrent_memory,
    static_cache,
    streaming_convolution,
    transducer,
    vision,
    vocoder,
    voice_activity,
    voxtral_example,
)
from models.case import ModelCase

from etshared_plugin.testing import assert_matches_eager

#: Models with the buffers and parameters that their entry points change.
MODELS: list[tuple[Callable[[], ModelCase], str]] = [
    (
        static_cache.build,
        "cache.key_cache_0 cache.key_cache_1 cache.value_cache_0 cache.value_cache_1",
    ),
    (
        llama_example.build,
        "layers.0.attention.kv_cache.k_cache layers.0.attention.kv_cache.v_cache",
    ),
    (
        llama_example.build_custom_operators,
        "layers.0.attention.kv_cache.k_cache layers.0.attention.kv_cache.v_cache"
        " layers.1.attention.kv_cache.k_cache layers.1.attention.kv_cache.v_cache",
    ),
    (
        encoder_decoder.build,
        "decoder.blocks.0.attn.k_cache decoder.blocks.0.attn.v_cache"
        " decoder.blocks.0.cross_attn.k_cache decoder.blocks.0.cross_attn.v_cache"
        " position",
    ),
    (
        transducer.build,
        "decoder.cell decoder.hidden decoder.output emitted encoder.c encoder.h"
        " lm.state",
    ),
    (
        streaming_convolution.build,
        "blocks.0.depthwise.context blocks.1.depthwise.context frontend.context"
        " memory.frames memory.head",
    ),
    (vocoder.build, "loudness samples source.phase up.tail"),
    (vision.build, "feature_mean feature_var num_images"),
    (
        voice_activity.build,
        "context silent_chunks speaking state threshold",
    ),
    (
        recurrent_memory.build,
        "blocks.0.mixer.conv_state blocks.0.mixer.ssm_state blocks.1.mixer.memory"
        " saved",
    ),
    (bandit.build, "inverse pulls rewards"),
    (
        bandit.build_target_network,
        "error online.2.bias online.2.weight"
        " target.0.bias target.0.weight target.2.bias target.2.weight",
    ),
]


#: Further ones of ExecuTorch's examples.
EXAMPLES: list[tuple[Callable[[], ModelCase], str]] = [
    (
        llama_example.build_quantized_cache,
        " ".join(
            f"layers.0.attention.kv_cache.{one}_cache{part}"
            for one in "kv"
            for part in ("", "_scales", "_zero_points")
        ),
    ),
    (
        llama_example.build_hybrid,
        "layers.0.conv.conv_state"
        " layers.1.attention.kv_cache.k_cache layers.1.attention.kv_cache.v_cache",
    ),
    (
        voxtral_example.build,
        "model.decoder.layers.0.attention.kv_cache.k_cache"
        " model.decoder.layers.0.attention.kv_cache.v_cache"
        " streaming.conv1_state streaming.conv2_state"
        " streaming.kv_caches.0.k_cache streaming.kv_caches.0.v_cache",
    ),
]

# ExecuTorch's example of Llama calls it.
pytestmark = pytest.mark.filterwarnings(
    "ignore:_check_is_size will be removed:FutureWarning"
)


def _names(models: list[tuple[Callable[[], ModelCase], str]]) -> list[str]:
    return [f"{build.__module__}.{build.__name__}" for build, _ in models]


@pytest.mark.parametrize(
    "partitioner",
    [pytest.param("portable", marks=pytest.mark.nightly), "xnnpack"],
    indirect=True,
)
@pytest.mark.parametrize(("build", "state"), MODELS, ids=_names(MODELS))
def test_a_model_matches_eager(
    partitioner: Sequence[Partitioner], build: Callable[[], ModelCase], state: str
) -> None:
    _assert_matches_eager(build(), partitioner, set(state.split()))


@pytest.mark.nightly
@pytest.mark.parametrize(("build", "state"), EXAMPLES, ids=_names(EXAMPLES))
def test_an_example_of_executorch_matches_eager(
    build: Callable[[], ModelCase], state: str
) -> None:
    _assert_matches_eager(build(), [XnnpackPartitioner()], set(state.split()))


def _assert_matches_eager(
    case: ModelCase, partitioner: Sequence[Partitioner], state: set[str]
) -> None:
    program = assert_matches_eager(
        case.root,
        case.entry_points,
        partitioner=partitioner,
        types=case.types,
        inputs=case.inputs,
        sequences=1,
        length=24,
        # Kernels sum in another order than eager, and what a call leaves in its
        # state the later ones build upon.
        rtol=1e-4,
        atol=1e-5,
    )
    assert set(program.session().state) == state
