"""A pretend accelerator: tensors that say they live on device `pretend`, and are computed on the CPU.

As on a GPU they cannot be mixed with tensors of the CPU, other than scalars, nor read as arrays. It counts what it
is asked to do: kernels, uploads, and downloads, each of which would make a GPU's queue run dry. Importing this
registers the device, which must come before the first backward pass of a process: see test_on_device.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
COPIES = (aten._to_copy.default, aten.copy_.default, aten._copy_from.default)
INDEXED = (aten.index.Tensor, aten.index_put.default, aten.index_put_.default)  # indices are moved unasked
LOOKS = (  # their answer, or how much of it there is, decides what comes next
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten.repeat_interleave.Tensor, aten._unique2.default, aten.unique_dim.default, aten.bincount.default,
    aten._linalg_check_errors.default, aten._linalg_eigh.default, aten._linalg_svd.default,
)  # fmt: skip

counted: Counter[str] = Counter()  # kernels, uploads, downloads, and of the uploads those that are waited for
limits: dict[str, Any] = {"rows": None, "float64": True}


class Module(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


class Pretend(torch.Tensor):
    """A tensor of the device: a wrapper around one of the CPU, which nobody else sees."""

    inner: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Pretend:
        made = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=DEVICE, requires_grad=inner.requires_grad,
        )  # fmt: skip
        made.inner = inner.detach()
        return made

    def __init__(self, inner: torch.Tensor) -> None:
        pass

    def __repr__(self) -> str:
        return f"Pretend({self.inner})"

    @property
    def data(self) -> Pretend:
        return Pretend(self.inner)

    @data.setter
    def data(self, value: Pretend) -> None:
        self.inner = value.inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


def compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives: computed with the tensors inside, and wrapped again where it stays here."""
    given = tree_leaves((args, kwargs))
    here = [one for one in given if isinstance(one, Pretend)]
    refuse_mixed(func, args, given, here)
    device = kwargs.get("device")
    stays = bool(here) if device is None else torch.device(device).type == DEVICE.type
    refuse_generator(kwargs.get("generator"), stays)
    count(func, args, here, stays)
    plain = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
    if device is not None:
        plain["device"] = "cpu"
    found = func(*tree_map(unwrapped, args), **tree_map(unwrapped, plain))
    if func is aten.copy_.default:
        return args[0]
    if not stays:
        return found
    known = {id(one.inner): one for one in here}  # what is changed in place stays itself

    def wrapped(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        refuse_unfit(func, one)
        return known.get(id(one)) if id(one) in known else Pretend(one)

    return tree_map(wrapped, found)


def unwrapped(one: Any) -> Any:
    return one.inner if isinstance(one, Pretend) else one


def refuse_mixed(func: Any, args: Any, given: list[Any], here: list[Pretend]) -> None:
    """As a GPU does, which takes numbers from the CPU, and indices of its own tensors."""
    if not here or func in COPIES or (func in INDEXED and isinstance(args[0], Pretend)):
        return
    if any(isinstance(one, torch.Tensor) and not isinstance(one, Pretend) and one.dim() for one in given):
        raise RuntimeError(f"expected all tensors to be on one device, found {DEVICE} and cpu, in {func}")


def refuse_generator(generator: Any, stays: bool) -> None:
    """As a GPU does, which draws with generators of its own alone."""
    if generator is not None and stays and generator._cdata not in Generator.there:
        raise RuntimeError(f"expected a generator of {DEVICE}, found one of the cpu")


def refuse_unfit(func: Any, made: torch.Tensor) -> None:
    """A convolution that a test says does not fit in memory, and a type that some devices lack."""
    if limits["rows"] is not None and func is aten.convolution.default and len(made) > limits["rows"]:
        raise torch.OutOfMemoryError(f"pretend out of memory: {len(made)} rows")
    if made.dtype == torch.float64 and not limits["float64"]:
        raise TypeError("the device has no float64")


def count(func: Any, args: Any, here: list[Pretend], stays: bool) -> None:
    if func in (aten.copy_.default, aten._copy_from.default):
        to, source = (args[0], args[1]) if func is aten.copy_.default else (args[1], args[0])
        moved = (isinstance(source, Pretend), isinstance(to, Pretend))
        way = {(True, False): "downloads", (False, True): "uploads"}.get(moved, "kernels")
        counted[way] += 1
        counted["waits"] += way == "uploads" and not any(args[2:])  # the third says that nobody waits
    elif here and (not stays or func in LOOKS or masked(func, args)):
        counted["downloads"] += 1
    else:
        counted["kernels"] += 1
        sent = sum(one is not None and not isinstance(one, Pretend) for one in args[1]) if func in INDEXED else 0
        counted.update(uploads=sent, waits=sent)


def masked(func: Any, args: Any) -> bool:
    """Whether a mask says which numbers are meant: they are counted first, unless all get the same one."""
    if func not in INDEXED or (len(args) > 2 and args[2].numel() == 1):
        return False
    return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """What is asked of the device inside the block."""
    before, found = counted.copy(), Counter[str]()
    yield found
    found.update(counted - before)


@contextmanager
def limited(**limit: Any) -> Iterator[None]:
    """rows: images that fit in memory at once. float64: whether the device has it."""
    before = limits.copy()
    limits.update(limit)
    try:
        yield
    finally:
        limits.update(before)


def made_there(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """torch.tensor and its like fill a tensor below what Python can see: made on the CPU, then moved."""

    def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        if device is None or torch.device(device).type != DEVICE.type:
            return make(data, *args, **kwargs) if device is None else make(data, *args, device=device, **kwargs)
        return make(data, *args, **kwargs).to(device)

    return made


class Generator(torch.Generator):
    """One of the device, which draws what the CPU's would. there: those that live, by what torch calls them."""

    there: ClassVar[set[int]] = set()

    def __new__(cls, device: Any = "cpu") -> Generator:
        there = torch.device(device).type == DEVICE.type
        made = super().__new__(cls, "cpu" if there else device)
        if there:
            cls.there.add(made._cdata)
        return made

    def __del__(self) -> None:
        self.there.discard(self._cdata)


backend_registration._setup_privateuseone_for_python_backend(rename="pretend", backend_module=Module())
DEVICE = torch.device("pretend:0")
torch.__future__.set_swap_module_params_on_conversion(True)
library = torch.library.Library("_", "IMPL")
library.fallback(lambda func, *args, **kwargs: compute(func, args, kwargs), "PrivateUse1")
library.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")  # it says bf16, and keeps float32
torch.Generator = Generator  # type: ignore[misc]
for name in ("tensor", "as_tensor"):
    setattr(torch, name, made_there(getattr(torch, name)))
