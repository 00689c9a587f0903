"""What a network is told of a prompt: computed once by the pipeline's own text encoders, then kept.

The empty prompt is what the pipeline itself takes for "no prompt". This needs the library transformers, unless the
folder holds conditions.safetensors already.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diti.core.errors import InputError
from diti.diffusion.files import FileError, complaints_about, fetch_more, without_remarks
from diti.diffusion.kinds.pipeline import CONDITIONS

Encode = Callable[[Any, str], dict[str, Tensor]]  # a pipeline with text encoders alone, and the prompt
WANTED = ("*.json", "*.txt", "*.model", "*.safetensors")  # of the folders of tokenizers and text encoders


def prompt_conditions(
    home: Path, pipeline: str, prompt: str, encode: Encode, absent: Sequence[str]
) -> dict[str, Tensor]:
    """What `encode` says of the prompt, by the folder's text encoders. absent: parts that it does not need."""
    if importlib.util.find_spec("transformers") is None:
        raise InputError(
            f"{home} holds no {CONDITIONS}: what its network is told of the prompt {prompt!r} is computed by its "
            "text encoders, which need the library transformers: pip install 'diti-torch[prompts]'"
        )
    import diffusers
    from transformers.utils import logging as transformers_logging

    fetch_more(home, [f"{part}*/{name}" for part in ("tokenizer", "text_encoder") for name in WANTED])
    if not (home / "text_encoder").is_dir():
        raise FileError(
            f"{home} holds no text_encoder, which tells the network the prompt {prompt!r}: copy the folders of "
            "the pipeline's text encoders and tokenizers, too"
        )
    with complaints_about(home / "text_encoder"), without_remarks(transformers_logging), torch.no_grad():
        parts = getattr(diffusers, pipeline).from_pretrained(home, **dict.fromkeys(absent))
        found = encode(parts, prompt)
    return {name: tensor.detach().float().contiguous() for name, tensor in found.items()}
