"""Inversion with margins: how far a state lies from those of all other tokens, and how far noise moves it."""

import re
from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.stats import chi2, norm
from torch import Tensor

from identilens.errors import SettingError

Hidden = Float[Tensor, "position d"]
"""A hidden state of each position."""

_FORM = re.compile(r"int(\d{1,2})(-channel)?|drop(0?\.\d+)|(\d*\.?\d+(?:e-\d+)?)")
_CASTS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_EXPECTED = (
    "as bfloat16, float16 or float32, int8 (2 to 16 bits, one scale for each token), int8-channel (one for each "
    "dimension), drop0.1 (this share of the dimensions set to 0), or the relative size of Gaussian noise such as 0.01"
)


@dataclass(frozen=True)
class Noise:
    """A way to store or release states that changes them; make it with `read`.

    Attributes:
        name: As tables have it.
        kind: A cast to a dtype, integers with a scale for each token or each channel, dropped dimensions, or Gaussian.
        size: Bits of a number; the share of dimensions that is dropped; or the standard deviation of Gaussian noise,
            such that its root mean square length is this share of the length of the state.
    """

    name: str
    kind: Literal["cast", "token", "channel", "drop", "gaussian"]
    size: float

    @classmethod
    def read(cls, noise: str | float) -> "Noise":
        """Return the noise of a name.

        Examples:
            >>> from identilens.measures.tokens.margins import Noise
            >>> [Noise.read(name).kind for name in ("int4-channel", "bfloat16", 0.01)]
            ['channel', 'cast', 'gaussian']

        Raises:
            SettingError: For any other name.
        """
        name = str(noise).strip()
        if name in _CASTS:
            return cls(name, "cast", float(torch.finfo(_CASTS[name]).bits))
        match = _FORM.fullmatch(name)
        if match is None:
            raise SettingError("noise", _EXPECTED, noise)
        bits, channel, share, scale = match.groups()
        if bits and 2 <= int(bits) <= 16:
            return cls(name, "channel" if channel else "token", float(bits))
        if share:
            return cls(name, "drop", float(share))
        if scale and float(scale) > 0:
            return cls(f"{float(scale):g}", "gaussian", float(scale))
        raise SettingError("noise", _EXPECTED, noise)

    def applied(self, states: Hidden, seed: int = 0) -> Hidden:
        """Return states as they come back with this noise, in float64; the seed is for what is random.

        Integers of b bits: round(x / s) s with s = max |x| / (2^(b−1) − 1), the largest over a token's state or, for
        each channel, over all positions. Scales are stored exactly.
        """
        exact = states.detach().double().cpu()
        generator = torch.Generator().manual_seed(seed)
        if self.kind == "cast":
            return states.cpu().to(_CASTS[self.name]).double()
        if self.kind == "drop":
            drawn = torch.rand(exact.shape, dtype=torch.float64, generator=generator)
            return exact * (drawn >= self.size)
        if self.kind == "gaussian":
            drawn = torch.randn(exact.shape, dtype=torch.float64, generator=generator)
            return exact + self.deviation(exact)[:, None] * drawn
        largest = exact.abs().amax(1 if self.kind == "token" else 0, keepdim=True)
        scale = (largest / (2 ** (int(self.size) - 1) - 1)).clamp_min(1e-300)
        return (exact / scale).round() * scale

    def deviation(self, states: Hidden) -> Float[Tensor, " position"]:
        """Return the standard deviation of Gaussian noise in each dimension of each state."""
        return self.size * states.double().norm(dim=1) / sqrt(states.shape[1])

    def error(
        self,
        states: Hidden,
        applied: Hidden,
        rivals: int,
        risk: float,
    ) -> Float[Tensor, " position"]:
        """Return how far noise moves each state: decoding is exact if a margin is larger.

        ‖ĥ − h‖. Gaussian noise has no largest length: of it, the length q for which decoding with a margin above q
        fails with a probability of at most ``risk``. With standard deviation σ in each of d dimensions and V rivals, it
        is the smaller of two: σ √χ²_d(1 − risk), for the length of the noise; and σ z(1 − risk / V), because decoding
        fails only if noise reaches half the way to one of V rivals, along one direction each.
        """
        if self.kind != "gaussian":
            return (applied - states.double().cpu()).norm(dim=1)
        longest = sqrt(chi2.isf(risk, states.shape[1]))
        towards = norm.isf(risk / max(1, rivals))
        return self.deviation(states.cpu()) * min(longest, max(0.0, float(towards)))


class Rival(NamedTuple):
    """The nearest candidate other than the right one: half its distance, its id (−1 if there is none) and its state."""

    margin: float
    id: int
    state: Float[Tensor, " d"]


class Nearest:
    """The candidates nearest to some states, found batch by batch, in float64.

    ``add`` takes batches of candidates. The first state h is the true one, or one to be decoded; squared distances of
    the others follow from its own differences, ‖c − ĥ‖² = ‖c − h‖² − 2 (c − h)·(ĥ − h) + ‖ĥ − h‖², with rounding of
    about 1e-16 of the largest term. Memory: one batch and the nearest candidates. Cost: one pass.

    Args:
        centres: The states.
        keep: How many candidates are kept for each of them, at least 2.

    Attributes:
        distances: Distances to the nearest, in order.
        ids: Their ids.
        states: States of those of the first centre.

    Examples:
        >>> import torch
        >>> from identilens.measures.tokens.margins import Nearest
        >>> nearest = Nearest(torch.tensor([[0.0, 0.0], [0.0, 1.75]]))
        >>> nearest.add(torch.arange(3), torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 2.0]]))
        >>> nearest.rival(0)[:2], nearest.ids[1, 0].item()
        ((1.0, 2), 2)
    """

    def __init__(self, centres: Float[Tensor, "centre d"], keep: int = 2) -> None:
        self.centres = centres.double()
        shape = (len(centres), keep)
        device = centres.device
        self.distances = torch.full(shape, torch.inf, dtype=torch.float64, device=device)
        self.ids = torch.full(shape, -1, device=device)
        self.states = self.centres[:1].expand(keep, -1)

    def add(self, ids: Int[Tensor, " candidate"], states: Float[Tensor, "candidate d"]) -> None:
        """Take a batch of candidates into account."""
        keep = self.ids.shape[1]
        away = states.double() - self.centres[0]
        moved = self.centres - self.centres[0]
        squares = away.square().sum(1) - 2 * (moved @ away.T) + moved.square().sum(1)[:, None]
        distances = torch.cat([self.distances, squares.clamp_min(0).sqrt()], 1)
        self.distances, top = distances.topk(keep, largest=False)
        ids = ids.to(self.ids.device)
        self.ids = torch.cat([self.ids, ids.expand(len(self.ids), -1)], 1).gather(1, top)
        new = top[0] >= keep
        known = self.states[torch.where(new, 0, top[0])]
        added = away[torch.where(new, top[0] - keep, 0)] + self.centres[0]
        self.states = torch.where(new[:, None], added, known)

    def rival(self, token: int) -> Rival:
        """Return the nearest candidate of the first state other than the token; its margin is infinite without any.

        m = ½ min ‖c_v − h‖ over v ≠ token.
        """
        rank = int(self.ids[0, 0] == token)
        half = float(self.distances[0, rank]) / 2
        return Rival(half, int(self.ids[0, rank]), self.states[rank])

    def distance_to(self, token: int) -> float:
        """Return the distance of the first state to the token's candidate, or at least that to the last one kept."""
        ranks = (self.ids[0] == token).nonzero()
        return float(self.distances[0, ranks[0, 0] if len(ranks) else -1])

    def separation(self) -> float:
        """Return a lower bound of half the distance from the first state's nearest candidate to every other one.

        Those that were not kept are at least as far from the state as the last that was, so at least that distance less
        the nearest's from the nearest.
        """
        among = (self.states[1:] - self.states[0]).norm(dim=1)
        others = self.distances[0, -1] - self.distances[0, 0]
        return float(torch.where(self.ids[0, 1:] >= 0, among, torch.inf).amin().minimum(others)) / 2
