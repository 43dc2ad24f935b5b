"""What of a torch tensor tells that its values changed."""

from typing import Any

import torch

SAMPLE_VALUES = 128  # of each tensor

Mark = tuple[int, int, torch.Size]


def mark(tensor: torch.Tensor) -> Mark:
    """Changes with what torch tells: other memory, or a write that it counts."""
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version, tensor.shape


def sample(tensor: torch.Tensor) -> bytes:
    """The bits of some values, evenly spread: a change of most values, however small, is in them."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.numel() <= SAMPLE_VALUES:
        return bytes(bytes_of(tensor))
    if tensor.is_contiguous():  # an odd step: not one column of a matrix
        return bytes(bytes_of(tensor.view(-1)[::tensor.numel() // SAMPLE_VALUES | 1]))
    each = SAMPLE_VALUES ** (1 / tensor.ndim)
    steps = tuple(slice(None, None, int(n / each) or 1) for n in tensor.shape)
    return bytes(bytes_of(tensor[steps]))


def bytes_of(tensor: torch.Tensor) -> Any:
    """The bits of its values, in their order."""
    if tensor.numel() == 0:
        return b""
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1)
    return flat.view(torch.uint8).cpu().numpy().data
