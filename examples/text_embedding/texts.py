"""The texts that the example embeds, and how they become token ids."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .model import MAX_TOKENS, model_directory

#: What is remembered: as many texts as there are places.
NOTES = (
    "The kettle whistled until somebody took it off the stove.",
    "Our train stood in the snow for an hour.",
    "My bicycle needs new brakes before winter.",
    "She mended the old violin and played it at the wedding.",
    "Six of the boats came back before the storm.",
    "Feed the cat twice a day, and not from the table.",
    "Tomatoes want sun, warm soil and patience.",
    "def area(radius): return 3.14159 * radius ** 2",
    "Der Käse reift im Keller — mindestens acht Wochen.",
    "東京の夜は明るい 🌃 naïve café, ½ price!",
    "cat",
    (
        "The lighthouse had been dark for eleven years when the keeper's daughter came"
        " back to the island. She found the door swollen shut, the stairs white with"
        " salt, and in the lamp room a pair of swallows that had raised their young"
        " between the lenses. For a week she only swept and listened. Then she took"
        " the mechanism apart, cleaned each wheel in a bowl of paraffin, and wrote"
        " down in a school notebook where every screw belonged. On the ninth evening"
        " the weights ran again, the light went round, and out at sea a fishing crew"
        " that had long stopped looking for it stood on deck without a word. Nobody"
        " had asked her to do it, and nobody ever asked her to stop."
    ),
)

#: What is looked for, and the note that should be found, by its place.
QUERIES = (
    ("making tea", 0),
    ("a delay on the railway", 1),
    ("repairing a musical instrument", 3),
    ("how large is a circle?", 7),
    ("growing vegetables", 6),
    ("a story about somebody who makes an abandoned beacon shine again", 11),
)

#: Texts that are easy to get wrong: nothing at all, and more than fits.
EDGES = ("", " ".join(NOTES) + " " + NOTES[-1])


def make_tokenizer() -> Tokenizer:
    """Return the original's tokenizer, which cuts off what is too long."""
    tokenizer = Tokenizer.from_file(str(model_directory() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def tokenize(tokenizer: Tokenizer, text: str) -> tuple[Tensor, Tensor]:
    """Return token ids and mask, as the model takes them."""
    encoding = tokenizer.encode(text)
    return torch.tensor([encoding.ids]), torch.tensor([encoding.attention_mask])
