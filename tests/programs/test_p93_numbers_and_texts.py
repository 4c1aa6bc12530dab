"""Numbers and texts read from tensors, checks that they are asked for, and sizes that depend on values.

PYTEST_DONT_REWRITE: the messages of assertions are compared.
"""

from __future__ import annotations

import logging
import math
import warnings

import pytest
import torch
from torch import nn

from tests.checking import check

EAGER = {"backend": "eager"}
LOG = logging.getLogger("c2")


def item(x):
    return x * x.sum().item(), x.sum().item()


def item_ret(x):
    return x + 1, x.max().item(), float(x.min()), x.tolist()


def int_tensor(x):
    return x + 1, int((x > 0).sum()), bool((x > 0).any()), (x > 0).sum().item()


def cmp_(x):
    return x + 1, x.sum().item() > 2, (x.sum().item() == 3.0)


def fmt(x):
    return x * 2, f"{x.sum().item():.3f} and {x.mean()}", "%s" % x.sum().item(), f"{1} {x.max()}"  # noqa: UP031


def strx(x):
    return x + 1, str(x), repr(x.sum())


def arith(x):
    a = x.sum().item()
    b = x.mean().item()
    return x * a / b, a + b, a * 2 - b, -a, abs(b), a / b, round(a, 2), max(a, b), a**2, a // 2, a % 2


def itemif(x):
    if x.sum().item() > 100:
        return x - 1
    return x + 1


def chk(x):
    torch._check(bool((x > -100).all()), lambda: f"bad {x}")
    return x * 2


def chkf(x):
    torch._check((x > 100).all().item(), lambda: f"bad {x.sum()}")
    return x * 2


def ass(x):
    assert torch.isfinite(x).all(), f"not finite: {x.sum().item()}"
    return x * 2


def assf(x):
    assert (x > 100).all(), f"not large: {x.sum().item()}"
    return x * 2


def ifraise(x):
    if not torch.isfinite(x).all():
        raise ValueError(f"bad {x.max()} {x.tolist()}")
    return x * 2


def ifraise2(x):
    y = x * 2
    if (y < 100).any():
        raise ValueError("small %s" % y.min())  # noqa: UP031
    return y


def maskq(x, mask):
    if (mask == 1).all():
        mask = None
    return x * 2 if mask is None else x * mask


def logit(x):
    LOG.debug("loss %s", x.sum())
    LOG.info(f"loss {x.sum().item()}")
    return x * 2


def warnit(x):
    warnings.warn(f"value {x.sum().item():.2f}", stacklevel=2)
    return x * 2


def mask(x):
    return x[x > 0] * 2


def nz(x):
    return (x > 0).nonzero() + 1


def uniq(x):
    return torch.unique(x) + 1


def binc(x):
    return torch.bincount((x > 0).long()) + 1


def where1(x):
    return torch.where(x > 0)[0] + 1


def msel(x):
    return torch.masked_select(x, x > 0) * 2


def onehot(x):
    return nn.functional.one_hot((x > 0).long()) + 1


def rep(x):
    return torch.repeat_interleave(x, (x > 0).long() + 1) * 2


def eq_(x):
    return x * 2, torch.equal(x, x + 0), torch.allclose(x, x + 1)


def tolist_sizes(x, n):
    return [p * 2 for p in x.split(n.tolist())]


def noteff(x):
    s = x.sum().item()
    d = {"loss": s, "l": [s, s * 2]}
    return x * s, d


def text_cond(x):
    s = f"{x.sum()}"
    return x * 2 if s else x


def text_key(x):
    s = f"{x.sum()}"
    return x * 2, {s: 1}


def item_mut(x):
    s = x.sum().item()
    x.add_(1)
    return x * s, s


def numimul(x):
    s = x.sum().item()
    y = x.clone()
    y *= s
    y /= 2
    y += s
    return y


def half(x):
    h = x.half()
    s = h.sum().item()
    return h * s, h + s, h / s


def loss_avg(x):
    total = 0.0
    for i in range(3):
        total += (x * i).sum().item()
    return x * 2, total / 3


def intarith(x):
    n = (x > 0).sum().item()
    return x * n, n + 1, n * 2, n // 2, n / 2


def boolnum(x):
    b = (x > 0).all().item()
    return x * 2, b, not b


def mathit(x):
    return x * 2, math.sqrt(x.sum().item() ** 2), math.isnan(x.sum().item()), math.log(abs(x.sum().item()) + 1)


def arg():
    return torch.tensor([0.5, -1.0, 2.0, 3.0])


ARGUMENTS = {maskq: (arg(), torch.ones(4)), tolist_sizes: (arg(), torch.tensor([1, 3]))}
CASES = [
    *(
        (fn, 1, 0)
        for fn in (
            item,
            item_ret,
            int_tensor,
            cmp_,
            fmt,
            strx,
            arith,
            itemif,
            chk,
            chkf,
            ass,
            assf,
            ifraise,
            ifraise2,
            logit,
            warnit,
            mask,
            nz,
            uniq,
            binc,
            where1,
            msel,
            rep,
            eq_,
            noteff,
            item_mut,
            numimul,
            half,
            loss_avg,
            boolnum,
            maskq,
            tolist_sizes,
        )
    ),
    (onehot, 2, 1),
    (text_cond, 2, 1),
    (text_key, 1, 1),
    (intarith, 1, 1),
    (mathit, 2, 1),
]  # graphs, breaks


@pytest.mark.parametrize("fn,graphs,breaks", CASES, ids=[case[0].__name__ for case in CASES])
def test_as_in_eager(fn, graphs, breaks):
    check(fn, *ARGUMENTS.get(fn, (arg(),)), graphs=graphs, breaks=breaks, options=EAGER)
