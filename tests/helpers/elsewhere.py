"""A second device on any machine: its tensors cannot be mixed with the processor's, as those of a GPU cannot.

What torch is told when this is imported holds for the whole process, so import it in a process of its own.
"""

from contextlib import contextmanager

import torch
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

KIND = "elsewhere"


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        """Autocast asks for them."""
        return [torch.float16, torch.bfloat16]


backend_registration._setup_privateuseone_for_python_backend(KIND, backend_module=_Backend())
DEVICE = torch.device(KIND, 0)

_ATEN = torch.ops.aten
_COPIES = {_ATEN._to_copy.default, _ATEN.copy_.default, _ATEN.lift_fresh.default}
_LOOK_UPS = {
    _ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default, _ATEN._index_put_impl_.default,
}  # fmt: skip


class Elsewhere(torch.Tensor):
    """A tensor of the second device, whose numbers lie in one of the processor's."""

    numbers: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=DEVICE,
            requires_grad=numbers.requires_grad,
        )
        made.numbers = numbers
        return made

    def __getitem__(self, index):
        """Torch's own, which cannot read lists of a subclass."""
        return super().__getitem__(_listless(index))

    def __setitem__(self, index, value):
        """Torch's own, which cannot read lists of a subclass."""
        super().__setitem__(_listless(index), value)

    def tolist(self):
        """Torch's own, which takes no subclass."""
        return self.numbers.tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class _Machine(TorchDispatchMode):
    has_doubles = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


@contextmanager
def elsewhere(*, doubles=True):
    """Give the device, on which tensors can be made inside the context: without float64, as Apple's, or with it."""
    _Machine.has_doubles = doubles
    with _Machine():
        yield DEVICE


def _listless(index):
    if isinstance(index, tuple):
        return tuple(map(_listless, index))
    if not isinstance(index, list):
        return index
    return torch.tensor(index) if index else torch.zeros(0, dtype=torch.long)


def _inner(value):
    return value.numbers if isinstance(value, Elsewhere) else value


def _outer(value):
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.float64 and not _Machine.has_doubles:
        raise TypeError("this device has no float64")
    return Elsewhere(value)


def _run(function, args, kwargs):
    """Run an operation on the numbers, after refusing tensors of two devices where a GPU refuses them."""
    if function is _ATEN._efficientzerotensor.default:
        function = _ATEN.zeros.default
    if function is _ATEN.histc.default:
        args = (args[0].float(), *args[1:])  # the processor's takes no integers
    given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    is_there = any(isinstance(one, Elsewhere) for one in given)
    if function is _ATEN.linalg_lstsq.default and is_there and kwargs.get("driver") != "gels":
        raise RuntimeError("only the driver gels is supported on this device")
    if function in _LOOK_UPS:
        # The processor's indices may look up the device's numbers, not the other way round.
        if is_there and not isinstance(args[0], Elsewhere):
            raise RuntimeError("indices or values are on another device than the indexed tensor")
        given = [args[0], *args[2:3]]
    plain = [one for one in given if not isinstance(one, Elsewhere) and one.dim()]
    if is_there and plain and function not in _COPIES:
        raise RuntimeError(f"expected all tensors of {function} to be on the same device")
    if function is _ATEN.copy_.default:
        function(*tree_map(_inner, args), **kwargs)
        return args[0]
    asked = kwargs.get("device")
    if asked is not None:
        is_there = torch.device(asked).type == KIND
        kwargs = {**kwargs, "device": torch.device("cpu"), "pin_memory": False}
        kwargs = {name: one for name, one in kwargs.items() if name in _names(function)}
    made = function(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if not is_there:
        return made
    made = tree_map(_outer, made)
    if asked is not None or function in _COPIES:
        return made
    return return_and_correct_aliasing(function, args, kwargs, made)


def _names(function):
    return {argument.name for argument in function._schema.arguments}


def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return Elsewhere(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source, target, non_blocking=False):
    _inner(target).copy_(_inner(source))
    return target


_LIBRARY = torch.library.Library("aten", "IMPL")
_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
