"""Proximal policy optimization of a cart with a pole: an environment in torch, rollouts as data, and a step with three nets of one class."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from dynacompile.recipes.optimizing import adamw
from dynacompile.recipes.text import as_it_is

Samples = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Observations (N, 4), actions (N,), advantages (N,) and returns (N,)."""


class CartPole:
    """`count` carts, each with a pole to balance by pushes to the left (0) or right (1); the physics of Barto, Sutton and Anderson (1983). A step brings a
    reward of 1. A cart that leaves the track, whose pole falls, or that has lasted `longest` steps, starts anew.

    state: (count, 4): position, its speed, angle, its speed. ages: steps since each cart's start.
    """

    GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    TRACK, ANGLE = 2.4, 0.21

    def __init__(self, count: int, longest: int = 200, seed: int = 0):
        self.longest, self.random = longest, torch.Generator().manual_seed(seed)
        self.state, self.ages = self.starts(count), torch.zeros(count, dtype=torch.int64)

    def starts(self, count: int) -> torch.Tensor:
        return 0.1 * torch.rand(count, 4, generator=self.random) - 0.05

    def step(self, actions: torch.Tensor) -> torch.Tensor:
        """Moves on by one step. Returns which carts ended with it, bool of shape (count,)."""
        place, speed, angle, turning = self.state.unbind(1)
        force = self.FORCE * (2 * actions - 1)
        mass, moment = self.CART + self.POLE, self.POLE * self.HALF_LENGTH
        pushed = (force + moment * turning**2 * angle.sin()) / mass
        lever = self.HALF_LENGTH * (4 / 3 - self.POLE * angle.cos() ** 2 / mass)
        falling = (self.GRAVITY * angle.sin() - angle.cos() * pushed) / lever
        moving = pushed - moment * falling * angle.cos() / mass
        self.state = self.state + self.SECONDS * torch.stack([speed, moving, turning, falling], 1)
        self.ages = self.ages + 1
        ended = (self.state[:, 0].abs() > self.TRACK) | (self.state[:, 2].abs() > self.ANGLE) | (self.ages >= self.longest)
        return ended

    def start_anew(self, ended: torch.Tensor) -> None:
        self.state = torch.where(ended[:, None], self.starts(len(ended)), self.state)
        self.ages = torch.where(ended, 0, self.ages)


class Perceptron(nn.Module):
    """Two hidden layers: (N, inputs) -> (N, outputs). The last layer starts small, so that a policy starts undecided."""

    def __init__(self, inputs: int = 4, width: int = 64, outputs: int = 2):
        super().__init__()
        last = nn.Linear(width, outputs)
        nn.init.normal_(last.weight, std=0.01)
        self.layers = nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class PPO(L.LightningModule):
    """The clipped objective: `policy` moves away from `reference`, which made the rollout, by at most a factor 1 +- `clip` in probability; `value` learns
    the returns; `entropy` keeps the policy undecided where nothing else decides."""

    def __init__(self, policy: nn.Module, value: nn.Module, lr: float = 3e-3, warmup: int = 1, clip: float = 0.2, entropy: float = 0.01):
        super().__init__()
        self.policy, self.value = policy, value
        self.reference = copy.deepcopy(policy).requires_grad_(False)
        self.lr, self.warmup, self.clip, self.entropy = lr, warmup, clip, entropy

    def training_step(self, batch: Samples, index: int) -> torch.Tensor:
        observations, actions, advantages, returns = batch
        log_policy = F.log_softmax(self.policy(observations), 1)
        with torch.no_grad():
            log_reference = F.log_softmax(self.reference(observations), 1)
        ratio = (log_policy - log_reference).gather(1, actions[:, None])[:, 0].exp()
        gained = torch.minimum(ratio * advantages, ratio.clamp(1 - self.clip, 1 + self.clip) * advantages).mean()
        undecided = -(log_policy.exp() * log_policy).sum(1).mean()
        value_loss = F.mse_loss(self.value(observations)[:, 0], returns)
        moved = (log_reference.exp() * (log_reference - log_policy)).sum(1).mean()
        self.log_dict({"train/value_loss": value_loss, "train/entropy": undecided, "train/kl": moved})
        loss = -gained - self.entropy * undecided + 0.5 * value_loss
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def on_train_batch_start(self, batch: Samples, index: int) -> None:
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        self.log("train/episode_steps", data.episode_steps, prog_bar=True, batch_size=len(batch[0]))

    def configure_optimizers(self) -> Any:
        return adamw(self, self.lr, self.warmup, weight_decay=0.0)


class Rollouts(L.LightningDataModule):
    """Rollouts of `steps` steps of `carts` carts by the policy as it is, each seen `passes` times in batches of `batch_size` samples.

    episode_steps: how long the carts lasted that ended in the last rollout.
    """

    def __init__(
        self,
        carts: int = 32,
        steps: int = 32,
        passes: int = 4,
        batch_size: int = 256,
        longest: int = 200,
        discount: float = 0.98,
        trace: float = 0.95,
        seed: int = 0,
    ):
        super().__init__()
        self.carts, self.steps, self.passes, self.batch_size, self.longest, self.seed = carts, steps, passes, batch_size, longest, seed
        self.discount, self.trace = discount, trace
        self.episode_steps = 0.0

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Played(self), batch_size=None, collate_fn=as_it_is)

    @torch.no_grad()
    def rollout(self, module: PPO, carts: CartPole, random: torch.Generator) -> Samples:
        """Plays on for `steps` steps. Advantages are generalized advantage estimates, normalised; rewards are scaled so that returns are at most 1."""
        device = module.device
        seen, chosen, ends, lasted = [], [], [], []
        for _ in range(self.steps):
            seen.append(carts.state)
            actions = torch.multinomial(module.policy(carts.state.to(device)).softmax(1).cpu(), 1, generator=random)[:, 0]
            ended = carts.step(actions)
            lasted.append(carts.ages[ended])
            carts.start_anew(ended)
            chosen.append(actions)
            ends.append(ended)
        self.episode_steps = float(torch.cat(lasted).float().mean()) if any(map(len, lasted)) else float(self.longest)
        values = module.value(torch.stack([*seen, carts.state]).to(device))[..., 0].cpu()
        advantages, running = torch.empty(self.steps, self.carts), torch.zeros(self.carts)
        for at in reversed(range(self.steps)):
            goes_on = ~ends[at]
            surprise = (1 - self.discount) + self.discount * goes_on * values[at + 1] - values[at]
            advantages[at] = running = surprise + self.discount * self.trace * goes_on * running
        returns = (advantages + values[:-1]).flatten()
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        return torch.stack(seen).flatten(0, 1), torch.stack(chosen).flatten(), scaled.flatten(), returns


class Played(IterableDataset):
    """Batches of rollouts without an end; the module's reference becomes its policy as of each rollout."""

    def __init__(self, data: Rollouts):
        self.data = data

    def __iter__(self) -> Iterator[Samples]:
        data = self.data
        module: Any = data.trainer.lightning_module  # type: ignore[union-attr]
        carts, random = CartPole(data.carts, data.longest, data.seed), torch.Generator().manual_seed(data.seed)
        while True:
            module.reference.load_state_dict(module.policy.state_dict())
            samples = data.rollout(module, carts, random)
            for _ in range(data.passes):
                for chosen in torch.randperm(len(samples[0]), generator=random).split(data.batch_size):
                    yield tuple(part[chosen] for part in samples)  # type: ignore[misc]
