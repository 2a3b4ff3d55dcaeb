"""Families that compute their softmax in float32 also in a model of float64: here they do not."""

import torch
from torch.overrides import TorchFunctionMode


class Float64(TorchFunctionMode):
    """While it is active, tensors in float64 are not rounded to float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        double = bool(args) and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64
        if double and func is torch.Tensor.float:
            return args[0]
        if double and kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        if double:
            args = tuple(
                torch.float64 if one == torch.float32 and isinstance(one, torch.dtype) else one for one in args
            )
        return func(*args, **kwargs)
