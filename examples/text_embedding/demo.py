"""Export all-MiniLM-L6-v2 with five entry points; embed, compare and find texts.

All results are compared with the original model's. Run it with
``etshared demo text_embedding`` or ``python examples text_embedding --output DIR``.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import reporting
from rich.console import Console

import etshared_plugin as etshared

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .measuring import Comparison

#: The most that a number may differ from the original model's.
ALLOWED_DIFFERENCE = 1e-4


def run(output: Path) -> int:
    with reporting.progress("importing torch and ExecuTorch"):
        import numpy as np

        from . import measuring
        from .model import load_model
        from .texts import EDGES, NOTES, QUERIES, make_tokenizer, tokenize
    queries = [query for query, _ in QUERIES]
    texts = [*NOTES, *EDGES, *queries]
    with reporting.progress("embedding the texts with the original"):
        original = measuring.run_original(texts)
    model = load_model()
    with reporting.progress(f"exporting {', '.join(measuring.NAMES)}"):
        all_of_them = measuring.export(model, output / "minilm.pte")
    with reporting.progress("exporting embed alone"):
        one = measuring.export(model, output / "minilm-embed.pte", ("embed",))

    program = etshared.load(all_of_them)
    session = program.session()
    session.load()
    with reporting.progress("embedding the texts"):
        comparisons = measuring.compare(session, texts, original)
        similarity = measuring.similarity_difference(session, texts, original)
        found = measuring.search(session, NOTES, queries)
    expected = original.similarities[-len(queries) :, : len(NOTES)]
    search = float(np.abs(found - expected).max())
    with reporting.progress("loading both programs a few times"):
        load_seconds = reporting.load_seconds((all_of_them, one))
    ids, mask = tokenize(make_tokenizer(), queries[0])
    np.save(output / "ids.npy", ids.numpy())
    np.save(output / "mask.npy", mask.numpy())

    console = reporting.stdout_console()
    print_found(console, NOTES, QUERIES, found)
    is_equal = print_differences(console, comparisons, similarity, search)
    reporting.print_costs(
        console,
        "Five entry points against one",
        ("five", "embed alone"),
        (all_of_them, one),
        load_seconds,
    )
    assert program.context is not None
    reporting.print_shared(console, program.context)
    reporting.print_packed(console, program.stats())
    inputs = " ".join(
        shlex.quote(f"{name}={output / name}.npy") for name in ("ids", "mask")
    )
    reporting.print_commands(console, all_of_them, f"--entry embed --input {inputs}")
    return 0 if is_equal else 1


def print_found(
    console: Console,
    notes: Sequence[str],
    queries: Sequence[tuple[str, int]],
    cosines: npt.NDArray[np.float32],
) -> None:
    """Print the nearest note to each query, and how near the second one is."""
    rows = []
    for (query, _), row in zip(queries, cosines, strict=True):
        second, first = row.argsort()[-2:]
        rows.append(
            (
                shortened(query, 30),
                f"{row[first]:.3f}",
                shortened(notes[first], 30),
                f"{row[second]:.3f}",
            )
        )
    reporting.print_table(
        console,
        f"The nearest of {len(notes)} remembered texts",
        ("query", ">cosine", "found", ">second"),
        rows,
    )


def print_differences(
    console: Console,
    comparisons: Sequence[Comparison],
    similarity: float,
    search: float,
) -> bool:
    """Print how far results are from the original's; return if near enough."""
    reporting.print_table(
        console,
        "Largest difference to the original, sentence_transformers",
        (">tokens", "text", ">embed", ">token_embeddings"),
        [
            (
                f"{one.num_tokens}",
                shortened(one.text),
                f"{one.embed_difference:.1e}",
                f"{one.token_difference:.1e}",
            )
            for one in comparisons
        ],
    )
    largest = {
        "embed": max(one.embed_difference for one in comparisons),
        "token_embeddings": max(one.token_difference for one in comparisons),
        "similarity": similarity,
        "remember, search": search,
    }
    reporting.print_table(
        console,
        "Largest difference over all texts",
        ("", ">difference", ">allowed"),
        [
            (name, f"{difference:.1e}", f"{ALLOWED_DIFFERENCE:.1e}")
            for name, difference in largest.items()
        ],
    )
    is_equal = all(value <= ALLOWED_DIFFERENCE for value in largest.values())
    if not is_equal:
        console.print("The program differs from the original.", style="bold red")
    return is_equal


def shortened(text: str, width: int = 40) -> str:
    """Return a text as a table shows it."""
    return f"{text[: width - 1]}…" if len(text) > width else text or "(empty)"
