"""How long a simulated call takes: lognormal, as measured latencies of model servers tend to be. Pure and seeded."""

import math
from random import Random
from typing import Self

import msgspec

_Z99 = 2.3263478740408408  # the standard normal's 99th percentile
_DRAWS = 10_000


class Latency(msgspec.Struct, frozen=True):
    """What a distribution really gave, in seconds."""

    mean_s: float
    p50_s: float
    p99_s: float


class Lognormal(msgspec.Struct, frozen=True):
    """exp(N(mu, sigma)), in seconds."""

    mu: float
    sigma: float

    @classmethod
    def through(cls, *, mean_s: float, p99_s: float) -> Self:
        """The distribution with exactly this mean and 99th percentile.

        mean = exp(mu + sigma^2/2) and p99 = exp(mu + z sigma) give sigma^2/2 - z sigma + ln(p99/mean) = 0. Of its two
        roots the smaller is meant: the larger has a median near zero and a tail without measure.

        Raises:
            ValueError: p99 below the mean, or more than 14.9 times the mean.
        """
        rest = _Z99**2 - 2 * math.log(p99_s / mean_s)
        if p99_s < mean_s or rest < 0:
            raise ValueError(f"no lognormal has mean {mean_s} s and p99 {p99_s} s; the p99 must be 1 to 14.9 means")
        sigma = _Z99 - math.sqrt(rest)
        return cls(mu=math.log(mean_s) - sigma**2 / 2, sigma=sigma)

    def draw(self, random: Random) -> float:
        """One latency, in seconds."""
        return random.lognormvariate(self.mu, self.sigma)

    def measured(self, seed: int) -> Latency:
        """Mean, p50 and p99 of 10,000 draws: what callers will see, rather than what the formula says."""
        random = Random(seed)
        draws = sorted(self.draw(random) for _ in range(_DRAWS))
        return Latency(
            mean_s=round(math.fsum(draws) / _DRAWS, 4),
            p50_s=round(draws[_DRAWS // 2], 4),
            p99_s=round(draws[_DRAWS * 99 // 100], 4),
        )
