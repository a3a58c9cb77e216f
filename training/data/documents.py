"""Documents within a sample: which tokens belong together, where positions begin anew, which losses count.

``ids`` are int64 of shape [samples, length + 1], as the samples themselves; equal numbers in a row are one document.
"""

from __future__ import annotations

import torch
from torch import Tensor


def positions(ids: Tensor) -> Tensor:
    """Return of each token how many tokens of its own document lie before it in the sample; int64, as ``ids``."""
    places = torch.arange(ids.shape[1]).expand_as(ids)
    begins = torch.zeros_like(ids)
    begins[:, 1:] = torch.where(ids[:, 1:] != ids[:, :-1], places[:, 1:], 0)
    return places - begins.cummax(dim=1).values


def loss_weights(ids: Tensor) -> Tensor:
    """Return 1 for each token that is predicted from its own document, 0 for the first of a document.

    Float32 of shape [samples, length]: of the targets, ``samples[:, 1:]``.
    """
    return (ids[:, 1:] == ids[:, :-1]).to(torch.float32)


def attention_mask(ids: Tensor) -> Tensor:
    """Return which token may attend to which: bool [samples, 1, length, length], causal and within a document.

    Of the inputs, ``samples[:, :-1]``; as ``scaled_dot_product_attention`` takes it, one mask for all heads.
    """
    inputs = ids[:, :-1]
    same = inputs[:, :, None] == inputs[:, None, :]
    return same.tril().unsqueeze(1)
