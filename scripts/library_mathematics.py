# ruff: noqa: PLC0415
"""Programs over libraries for graphs, equations, flows, distributions and reinforcement learning, as those of `library_programs.py`."""

from __future__ import annotations

from typing import Any

import torch
from library_programs import program
from torch import nn

# graphs


def graph() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(10, 8), torch.randint(0, 10, (2, 30))


@program("torch_geometric")
def convolutions_of_a_graph() -> Any:
    from torch_geometric.nn import GCN

    x, edges = graph()
    return GCN(8, 16, 2, 4), lambda m, turn: m(x, edges)


@program("torch_geometric")
def attention_over_edges() -> Any:
    from torch_geometric.nn import GAT

    x, edges = graph()
    return GAT(8, 16, 2, 4, v2=True, heads=2, dropout=0.1), lambda m, turn: m(x, edges)


@program("torch_geometric")
def pooled_graphs() -> Any:
    from torch_geometric import nn as layers

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers.SAGEConv(8, 16), layers.GINConv(nn.Sequential(nn.Linear(16, 16), nn.ReLU()))
            self.last = nn.Linear(32, 2)

        def forward(self, x: torch.Tensor, edges: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
            h = self.second(self.first(x, edges).relu(), edges)
            return self.last(torch.cat([layers.global_mean_pool(h, batch), layers.global_max_pool(h, batch)], -1))

    x, edges = graph()
    batch = torch.tensor([0] * 4 + [1] * 6)
    return Pooled(), lambda m, turn: m(x, edges, batch)


@program("torch_geometric")
def two_kinds_of_nodes() -> Any:
    from torch_geometric.nn import HeteroConv, SAGEConv

    nodes = {"a": torch.randn(5, 8), "b": torch.randn(6, 8)}
    edges = {("a", "to", "b"): torch.randint(0, 5, (2, 9)), ("b", "to", "a"): torch.randint(0, 5, (2, 9))}
    return HeteroConv({kind: SAGEConv((8, 8), 4) for kind in edges}), lambda m, turn: m(nodes, edges)


@program("torch_geometric")
def best_nodes() -> Any:
    from torch_geometric.nn import TopKPooling

    x, edges = graph()
    return TopKPooling(8, ratio=0.5), lambda m, turn: m(x, edges, None, torch.zeros(10, dtype=torch.long))[0]


# equations, flows, distributions


@program("torchsde")
def equation_with_noise() -> Any:
    import torchsde

    class Equation(nn.Module):
        noise_type, sde_type = "diagonal", "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift, self.diffusion = nn.Linear(3, 3), nn.Linear(3, 3)

        def f(self, t: Any, y: Any) -> Any:
            return self.drift(y)

        def g(self, t: Any, y: Any) -> Any:
            return self.diffusion(y).sigmoid()

    y, times = torch.randn(4, 3), torch.linspace(0, 1, 3)

    def call(m: Any, turn: int) -> Any:
        return torchsde.sdeint(m, y, times, bm=torchsde.BrownianInterval(0.0, 1.0, size=(4, 3), entropy=3), dt=0.25, method="euler")

    return Equation(), call


def observed(data: Any) -> None:
    import pyro
    import pyro.distributions as dist

    place = pyro.sample("place", dist.Normal(torch.tensor(0.0), torch.tensor(10.0)))
    with pyro.plate("data", len(data)):
        pyro.sample("seen", dist.Normal(place, 1.0), obs=data)


@program("pyro-ppl", trains=False)
def trace_of_a_model() -> Any:
    from pyro import poutine

    data = torch.randn(20) + 3
    return nn.Identity(), lambda m, turn: m(poutine.trace(observed).get_trace(data).log_prob_sum())


@program("pyro-ppl")
def loss_of_variational_inference() -> Any:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import Trace_ELBO

    class Guide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.width = nn.Parameter(torch.tensor(0.0)), nn.Parameter(torch.tensor(0.0))

        def forward(self, data: Any) -> None:
            pyro.sample("place", dist.Normal(self.place, self.width.exp()))

    data, loss = torch.randn(20) + 3, Trace_ELBO()
    return Guide(), lambda m, turn: loss.differentiable_loss(observed, m, data)


@program("higher")
def steps_of_an_inner_loop() -> Any:
    import higher

    x = torch.randn(5, 3)

    def call(m: Any, turn: int) -> Any:
        inner = torch.optim.SGD(m.parameters(), lr=0.1)
        with higher.innerloop_ctx(m, inner, copy_initial_weights=False) as (functional, step):
            for _ in range(2):
                step.step(functional(x).pow(2).mean())
            return functional(x).sum()

    return nn.Linear(3, 1), call


@program("torchdiffeq")
def equation_by_fixed_steps() -> Any:
    from torchdiffeq import odeint

    y, times = torch.randn(3, 2), torch.linspace(0, 1, 4)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), lambda m, turn: odeint(lambda t, y: m(y), y, times, method="rk4")


@program("zuko")
def spline_flow() -> Any:
    import zuko

    x, given = torch.randn(6, 2), torch.randn(6, 1)
    return zuko.flows.NSF(2, 1, transforms=2, hidden_features=(8, 8)), lambda m, turn: -m(given).log_prob(x).mean()


@program("gpytorch")
def gaussian_process_by_inducing_points() -> Any:
    import gpytorch

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self, points: torch.Tensor):
            given = gpytorch.variational.CholeskyVariationalDistribution(points.size(0))
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, given, learn_inducing_locations=True))
            self.mean, self.covariance = gpytorch.means.ConstantMean(), gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.covariance(x))

    x = torch.rand(20, 2)
    wanted = torch.sin(x.sum(-1) * 4)
    return Process(torch.rand(5, 2)), lambda m, turn: -gpytorch.mlls.VariationalELBO(m.likelihood, m, num_data=20)(m(x), wanted)


@program("jaxtyping")
def shapes_by_annotations() -> Any:
    from beartype import beartype
    from jaxtyping import Float, jaxtyped

    def weights(query: Any, key: Any) -> Any:
        return (query @ key.mT).softmax(-1)

    tensor: Any = torch.Tensor
    weights.__annotations__ = {"query": Float[tensor, "b n d"], "key": Float[tensor, "b m d"], "return": Float[tensor, "b n m"]}
    checked = jaxtyped(typechecker=beartype)(weights)

    def call(m: Any, turn: int) -> Any:
        x = torch.randn(2, 5 + turn, 4)
        return checked(m(x), x)

    return nn.Linear(4, 4), call


@program("e3nn")
def tensor_product() -> Any:
    from e3nn import o3

    x = torch.randn(3, 5)
    return o3.FullyConnectedTensorProduct(*["2x0e+1x1o"] * 3), lambda m, turn: m(x, x)


# reinforcement learning


@program("tensordict")
def modules_by_keys() -> Any:
    from tensordict import TensorDict
    from tensordict.nn import TensorDictModule, TensorDictSequential

    x = torch.randn(3, 4)
    first = TensorDictModule(nn.Linear(4, 8), in_keys=["seen"], out_keys=["hidden"])
    second = TensorDictModule(nn.Linear(8, 2), in_keys=["hidden"], out_keys=["action"])
    return TensorDictSequential(first, second), lambda m, turn: m(TensorDict({"seen": x}, batch_size=[3]))["action"]


@program("tensordict")
def dicts_of_tensors() -> Any:
    from tensordict import TensorDict

    def call(m: Any, turn: int) -> Any:
        dicts = TensorDict({"a": torch.ones(3, 4), "b": {"c": torch.zeros(3, 2)}}, [3])
        dicts["d"] = m(dicts["a"])
        dicts = dicts[1:].apply(lambda value: value * 2)
        return dicts["d"], dicts["b", "c"], torch.stack([dicts, dicts]).sum(0)["d"]

    return nn.Linear(4, 4), call


@program("tensordict")
def classes_of_tensors() -> Any:
    from tensordict import tensorclass

    made: Any = tensorclass(type("Steps", (), {"__annotations__": {"seen": torch.Tensor, "reward": torch.Tensor}}))

    def call(m: Any, turn: int) -> Any:
        steps = made(seen=torch.ones(3, 4), reward=torch.zeros(3), batch_size=[3])
        steps.seen = m(steps.seen)
        return steps[1:].seen, torch.cat([steps, steps[1:]]).reward, steps.reshape(1, 3).seen

    return nn.Linear(4, 4), call


@program("torchrl")
def advantages() -> Any:
    from torchrl.objectives.value.functional import generalized_advantage_estimate

    values, rewards, done = torch.randn(2, 6, 1), torch.ones(2, 6, 1), torch.zeros(2, 6, 1, dtype=torch.bool)
    return nn.Linear(1, 1), lambda m, turn: generalized_advantage_estimate(0.99, 0.95, m(values), m(values), rewards, done, done)
