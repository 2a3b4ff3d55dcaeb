"""Computation in float64 throughout, for families that compute their softmax or norms in float32."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    """While it is active in a thread, tensors in float64 are not rounded to float32."""

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one torch function; where it would turn a tensor of float64 into float32, it does not."""
        named = dict(kwargs or {})
        if not args or not isinstance(args[0], Tensor) or args[0].dtype != torch.float64:
            return func(*args, **named)
        if func is Tensor.float:
            return args[0]
        kept = {torch.float32: torch.float64}
        args = tuple(kept.get(one, one) if isinstance(one, torch.dtype) else one for one in args)
        return func(
            *args,
            **named | ({"dtype": torch.float64} if named.get("dtype") is torch.float32 else {}),
        )
