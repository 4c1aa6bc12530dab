"""Subclasses of torch.Tensor for programs: with an override of torch's functions and without one, with attributes, operators and hooks of their own."""

from __future__ import annotations

import copy

import torch

import dynacompile
from tests.checking import check

EAGER = {"backend": "eager"}


class Copied:
    """torch's own copy needs an override of new_empty."""

    def __deepcopy__(self, memo):
        with torch._C.DisableTorchFunctionSubclass():
            new = self.detach().clone().as_subclass(type(self)).requires_grad_(self.requires_grad)
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return new


class Plain(Copied, torch.Tensor):
    pass


class Below(Plain):
    pass


class Unrelated(Copied, torch.Tensor):
    pass


class Disabled(Copied, torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Logged(Copied, torch.Tensor):
    log: list = []
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        cls.log.append((func.__name__, [t.__name__ for t in types], len(args), sorted(kwargs or ())))
        return super().__torch_function__(func, types, args, kwargs)


class Unwrapping(Copied, torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func(*[a.as_subclass(torch.Tensor) if isinstance(a, cls) else a for a in args], **(kwargs or {}))


class Meta(Copied, torch.Tensor):
    """Carries a word from operand to result."""

    @staticmethod
    def __new__(cls, data, word=None):
        return torch.as_tensor(data).as_subclass(cls)

    def __init__(self, data, word=None):
        self.word = word

    @property
    def twice(self):
        return self * 2

    def scaled(self, factor):
        return self * factor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        words = [a.word for a in args if isinstance(a, cls) and hasattr(a, "word")]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            result = result.as_subclass(cls)
            result.word = words[0] if words else None
        return result


KEPT = {torch.Tensor.clone, torch.Tensor.to, torch.Tensor.detach, torch.Tensor.requires_grad_}


class Image(Copied, torch.Tensor):
    """As libraries of images have it: results are plain but for some functions, and fields have getters of the class."""

    @classmethod
    def wrap(cls, tensor, *, like):
        made = tensor.as_subclass(cls)
        made.label = like.label
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not all(issubclass(cls, t) for t in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            output = func(*args, **(kwargs or {}))
        if func in KEPT and isinstance(args[0], cls):
            return cls.wrap(output, like=args[0])
        if isinstance(output, cls):
            return output.as_subclass(torch.Tensor)
        return output

    @property
    def shape(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().shape

    @property
    def dtype(self):
        with torch._C.DisableTorchFunctionSubclass():
            return super().dtype

    def __repr__(self):
        return f"Image({self.label})"


class Operators(Copied, torch.Tensor):
    factor = 5
    __hash__ = torch.Tensor.__hash__

    def __add__(self, other):
        return "mine", super().__add__(other)

    def __rsub__(self, other):
        return "rsub", other

    def add(self, other):
        return "add", super().add(other)

    def __neg__(self):
        return "neg"

    def __len__(self):
        return 17

    def __bool__(self):
        return True

    def __getitem__(self, index):
        return super().__getitem__(index) * 10

    def __eq__(self, other):
        return "eq"

    def __contains__(self, item):
        return item == 3

    @classmethod
    def of(cls, x):
        return x.as_subclass(cls)

    @staticmethod
    def double(x):
        return x * 2


class Choosing(Copied, torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.calls += 1
        if func is torch.Tensor.add:
            return super().__torch_function__(torch.sub, types, args, kwargs)
        if func == torch.Tensor.itemsize.__get__:
            return "itemsize"
        if func.__name__ == "mul":
            return NotImplemented
        return super().__torch_function__(func, types, args, kwargs)


class Setting(Copied, torch.Tensor):
    @property
    def word(self):
        return self._word

    @word.setter
    def word(self, value):
        self._word = value * 2


class Assigning(Copied, torch.Tensor):
    def __setattr__(self, name, value):
        super().__setattr__(name, (value, "set"))


class Asking(Copied, torch.Tensor):
    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return "asked for " + name


class BySuper(Copied, torch.Tensor):
    @staticmethod
    def __new__(cls, x, *args, **kwargs):
        return super().__new__(cls, x)

    def __init__(self, x, a=1, *, b=2):
        super().__init__()
        self.a, self.b = a, b


class Made(Copied, torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_subclass(cls, x)


class OwnParameter(Copied, torch.nn.Parameter):
    pass


def dense():
    return torch.linspace(-2, 3, 9).reshape(3, 3)


def arg(cls=Plain, grad=True):
    x = dense().as_subclass(cls)
    return x.requires_grad_() if grad else x


def check_both(fn, *args, **facts):
    check(fn, *args, options=EAGER, **facts)
    check(fn, *args, **facts)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def compiled_of(fn, **options):
    dynacompile.reset()
    return dynacompile.compile(fn, isolate_recompiles=True, **{"backend": "eager", **options})
