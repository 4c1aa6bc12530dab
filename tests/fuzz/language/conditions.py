"""Branches on what tensors hold, with stores between the questions, as templates of `wider.py`: which are asked of inputs, and of what is made of them."""

from __future__ import annotations

from tests.fuzz.language.scope import Statement
from tests.fuzz.language.wider import from_family

STORES = (
    """
N1 = <tensor>.detach().clone()
N2 = N1.flatten()
N2[N1.flatten() > <small>] = 3.0
N3 = (N2 > 2).any().item()
~
if N3:
    N1 = N1 * 2
N2[0] = <small> + 4.0
if (N2[:1] > 2).any():
    N1 = N1 + N2.sum()
~
N4 = N1 - 1 if N3 else N1 + N2.sum()
-> N4 tensor""",
    """
N1 = torch.where(<tensor>.detach() > <small>, 0.0, -9.0)
N2 = N1[:, :1]
N2[N2 < -1] += 10.0
~
for N3 in range(3):
    if (N1 > 0).any().item():
        N1 = N1 + N3
    if (N2 == 0).all():
        N1 = N1 * 2
-> N1 tensor""",
    """
N1 = torch.ones(4, dtype=torch.long)
N1[1:] = <small>
N2 = torch.arange(6)[N1.clamp(0, 5)]
~
if bool((N2 > 1).all()):
    N3 = N2 * 2
elif (N2 == N1).any():
    N3 = N2 - 1
else:
    N3 = N1
N1[0] = 7
N4 = N3.float() + (1 if (N1 > 6).any() else 2)
-> N4 tensor""",
)
QUESTIONS = (
    """
N1 = <tensor>.detach()
N2 = (N1 > <small>).flatten()
N3 = [bool(N2.any()), bool(N2.all()), int(N2.sum()) > 2]
~
if N3[0] and not N3[1]:
    N1 = N1 + 1
if N2.any():
    N1 = N1 * 2
N4 = 'some' if N2.any().item() else 'none'
LOG.append((N3, N4))
-> N1 tensor""",
    """
N1 = <tensor>.detach()
N2 = None if (N1 < 9).all() else N1
~
N3 = N1 * 2 if N2 is None else N1 * N2
while (N1 > <small> + 2).any():
    N1 = N1 - 1
    N3 = N3 + 1
-> N3 tensor""",
)
SELECTED = (
    """
N1 = <tensor>.detach().clone()
N2 = (N1 * 2).sum()
if N2 > <small>:
    N3 = N2 + 1
    N4 = N1.max() * 2
elif N1.min() > -2 and N2 < 3:
    N3 = N2 - 1
    N4 = N1.mean()
else:
    N3 = N2 * N2
    N4 = N1.min()
~
N5 = N1 * N3 + N4
-> N5 tensor""",
    """
class N1:
    def __init__(self):
        self.low = torch.zeros(1)
        self.high = torch.ones(1)
N2 = N1()
N3 = <tensor>.detach()
for N4 in range(3):
    if (N3 * (N4 + 1)).sum() > <small>:
        N2.low = N2.low + N3.min()
        N2.high = N2.high * 0.5
    else:
        N2.low = N2.low * 0.5
        N2.high = N2.high + N3.max()
~
N5 = N2.low if (N2.high > <small>).all() else N2.high - 1
N6 = N3 + N2.low * N2.high + N5
-> N6 tensor""",
    """
N1 = <tensor>.detach().exp()
N2 = {'seen': 0, 'last': None}
try:
    N2['seen'] = 1
    N2['last'] = N1.sum()
    if (N1 * 2).sum() > <small> + 40:
        raise ValueError('large')
    N2['seen'] = 2
    N2['last'] = N1 * 2
except ValueError as N3:
    LOG.append(str(N3))
LOG.append(N2['seen'])
~
N4 = N2['last'].sum()
-> N4 tensor""",
)
CHECKED = (
    """
LOG.append('before')
N1 = <tensor>.detach() * 2
if (N1.abs() > <small> + 30).any():
    raise ValueError('large')
LOG.append(('between', len(LOG)))
assert N1.isnan().sum() == 0 and N1.abs().sum() < 500, 'wide'
~
N2 = N1 + 1
-> N2 tensor""",
    """
N1 = torch.arange(5.0)
N2 = <tensor>.detach() * 3
if not (N2.abs().sum() < 900):
    raise RuntimeError('wide', 3)
N3 = torch.nn.functional.embedding(torch.tensor([[0, 1], [4, 2]]), N1[:, None])
N4 = N1[torch.arange(3), ]
~
N5 = N2.sum() + N3.sum() + N4
-> N5 tensor""",
)
CONDITIONS: list[tuple[float, Statement]] = [(3.0, from_family(templates)) for templates in (STORES, QUESTIONS, SELECTED, CHECKED)]
