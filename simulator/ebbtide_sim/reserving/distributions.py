"""The nine distributions of seed 002 in closed form, and the parser of their names.

scipy.stats is not used: a call there takes 25 to 700 times as long, its import takes 0.4 s more than that of
scipy.special, and E[X | X > t] is a numerical integral that takes milliseconds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ebbtide_core.model.spelling import none_of
from ebbtide_core.reserving.distribution import Distribution, Empirical, ReservationError
from scipy import special

SQRT_2PI: Final = math.sqrt(2 * math.pi)


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ReservationError(f"--dist: {name} is {value:g}, it must be a number above 0")


class _Endless:
    """Run times that may be any positive number."""

    low = 0.0
    high = math.inf


@dataclass(frozen=True)
class Exponential(_Endless):
    """The exponential distribution with ``rate``."""

    rate: float

    def __post_init__(self) -> None:
        _positive(rate=self.rate)

    @property
    def mean(self) -> float:
        return 1 / self.rate

    @property
    def second_moment(self) -> float:
        return 2 / self.rate**2

    def sf(self, t: float) -> float:
        return math.exp(-self.rate * t)

    def pdf(self, t: float) -> float:
        return self.rate * math.exp(-self.rate * t)

    def quantile(self, p: float) -> float:
        return -math.log1p(-p) / self.rate

    def mean_beyond(self, t: float) -> float:
        return t + 1 / self.rate


@dataclass(frozen=True)
class Weibull(_Endless):
    """The Weibull distribution with ``scale`` and ``shape``."""

    scale: float
    shape: float

    def __post_init__(self) -> None:
        _positive(scale=self.scale, shape=self.shape)

    @property
    def mean(self) -> float:
        return self.scale * math.gamma(1 + 1 / self.shape)

    @property
    def second_moment(self) -> float:
        return self.scale**2 * math.gamma(1 + 2 / self.shape)

    def sf(self, t: float) -> float:
        return math.exp(-float((t / self.scale) ** self.shape))

    def pdf(self, t: float) -> float:
        return float(self.shape / self.scale * (t / self.scale) ** (self.shape - 1) * self.sf(t))

    def quantile(self, p: float) -> float:
        return float(self.scale * (-math.log1p(-p)) ** (1 / self.shape))

    def mean_beyond(self, t: float) -> float:
        z = float((t / self.scale) ** self.shape)
        if z > 600:  # both factors below leave the range of floats, so return the limit of their product
            return t + t / z / self.shape
        a = 1 + 1 / self.shape
        return float(self.scale * math.gamma(a) * special.gammaincc(a, z) * math.exp(z))


@dataclass(frozen=True)
class Gamma(_Endless):
    """The gamma distribution with ``shape`` and ``rate``."""

    shape: float
    rate: float

    def __post_init__(self) -> None:
        _positive(shape=self.shape, rate=self.rate)

    @property
    def mean(self) -> float:
        return self.shape / self.rate

    @property
    def second_moment(self) -> float:
        return self.mean * (self.shape + 1) / self.rate

    def sf(self, t: float) -> float:
        return float(special.gammaincc(self.shape, self.rate * t))

    def pdf(self, t: float) -> float:
        z = self.rate * t
        return self.rate * math.exp((self.shape - 1) * math.log(z) - z - math.lgamma(self.shape)) if z > 0 else 0.0

    def quantile(self, p: float) -> float:
        return float(special.gammaincinv(self.shape, p) / self.rate)

    def mean_beyond(self, t: float) -> float:
        beyond = self.sf(t)
        if beyond < 1e-280:
            return t + 1 / self.rate
        return float(self.shape / self.rate * special.gammaincc(self.shape + 1, self.rate * t) / beyond)


@dataclass(frozen=True)
class Lognormal(_Endless):
    """The distribution of exp(X) for a normal X with mean ``mu`` and standard deviation ``sigma``."""

    mu: float
    sigma: float

    def __post_init__(self) -> None:
        _positive(sigma=self.sigma)

    @property
    def mean(self) -> float:
        return math.exp(self.mu + self.sigma**2 / 2)

    @property
    def second_moment(self) -> float:
        return math.exp(2 * self.mu + 2 * self.sigma**2)

    def _z(self, t: float) -> float:
        return (math.log(t) - self.mu) / self.sigma

    def sf(self, t: float) -> float:
        return float(special.ndtr(-self._z(t))) if t > 0 else 1.0

    def pdf(self, t: float) -> float:
        return math.exp(-(self._z(t) ** 2) / 2) / (t * self.sigma * SQRT_2PI)

    def quantile(self, p: float) -> float:
        return math.exp(self.mu + self.sigma * float(special.ndtri(p))) if p > 0 else 0.0

    def mean_beyond(self, t: float) -> float:
        z = self._z(t)
        ratio = special.log_ndtr(self.sigma - z) - special.log_ndtr(-z)
        return math.exp(self.mu + self.sigma**2 / 2 + float(ratio))


@dataclass(frozen=True)
class TruncatedNormal(_Endless):
    """The normal distribution with mean ``mu`` and standard deviation ``sigma``, truncated at 0."""

    mu: float
    sigma: float

    def __post_init__(self) -> None:
        _positive(sigma=self.sigma)

    @property
    def mean(self) -> float:
        return self.mean_beyond(0.0)

    @property
    def second_moment(self) -> float:
        return self.sigma**2 + self.mu * self.mean

    def sf(self, t: float) -> float:
        return float(special.ndtr((self.mu - t) / self.sigma) / special.ndtr(self.mu / self.sigma))

    def pdf(self, t: float) -> float:
        z = (t - self.mu) / self.sigma
        return math.exp(-z * z / 2) / (self.sigma * SQRT_2PI * float(special.ndtr(self.mu / self.sigma)))

    def quantile(self, p: float) -> float:
        left = float(special.ndtr(self.mu / self.sigma))
        return max(0.0, self.mu - self.sigma * float(special.ndtri((1 - p) * left)))

    def mean_beyond(self, t: float) -> float:
        z = (t - self.mu) / self.sigma
        return self.mu + self.sigma * math.exp(-z * z / 2 - float(special.log_ndtr(-z))) / SQRT_2PI


@dataclass(frozen=True)
class Pareto:
    """The Pareto distribution above ``scale``, with tail exponent ``shape``."""

    scale: float
    shape: float

    def __post_init__(self) -> None:
        _positive(scale=self.scale, shape=self.shape)
        if self.shape <= 1:
            raise ReservationError(f"--dist: pareto's second number is {self.shape:g}: with at most 1 there is no mean")

    high = math.inf

    @property
    def low(self) -> float:
        return self.scale

    @property
    def mean(self) -> float:
        return self.mean_beyond(0.0)

    @property
    def second_moment(self) -> float:
        return self.shape * self.scale**2 / (self.shape - 2) if self.shape > 2 else math.inf

    def sf(self, t: float) -> float:
        return float((self.scale / t) ** self.shape) if t > self.scale else 1.0

    def pdf(self, t: float) -> float:
        return self.shape / t * self.sf(t) if t >= self.scale else 0.0

    def quantile(self, p: float) -> float:
        return float(self.scale * (1 - p) ** (-1 / self.shape))

    def mean_beyond(self, t: float) -> float:
        return self.shape / (self.shape - 1) * max(t, self.scale)


@dataclass(frozen=True)
class Uniform:
    """The uniform distribution between ``low`` and ``high``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low < self.high < math.inf:
            raise ReservationError(f"--dist: uniform:{self.low:g},{self.high:g} is not LOW,HIGH with 0 <= LOW < HIGH")

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def second_moment(self) -> float:
        return (self.high**3 - self.low**3) / (3 * (self.high - self.low))

    def sf(self, t: float) -> float:
        return min(1.0, max(0.0, (self.high - t) / (self.high - self.low)))

    def pdf(self, t: float) -> float:
        return 1 / (self.high - self.low) if self.low <= t <= self.high else 0.0

    def quantile(self, p: float) -> float:
        return self.low + p * (self.high - self.low)

    def mean_beyond(self, t: float) -> float:
        return (min(max(t, self.low), self.high) + self.high) / 2


@dataclass(frozen=True)
class Beta:
    """The beta distribution between 0 and 1, with shapes ``a`` and ``b``."""

    a: float
    b: float

    def __post_init__(self) -> None:
        _positive(a=self.a, b=self.b)

    low = 0.0
    high = 1.0

    @property
    def mean(self) -> float:
        return self.a / (self.a + self.b)

    @property
    def second_moment(self) -> float:
        return self.mean * (self.a + 1) / (self.a + self.b + 1)

    def sf(self, t: float) -> float:
        return float(special.betaincc(self.a, self.b, min(1.0, max(0.0, t))))

    def pdf(self, t: float) -> float:
        if not 0 < t < 1:
            return 0.0
        return math.exp(
            (self.a - 1) * math.log(t) + (self.b - 1) * math.log1p(-t) - float(special.betaln(self.a, self.b))
        )

    def quantile(self, p: float) -> float:
        return float(special.betaincinv(self.a, self.b, p))

    def mean_beyond(self, t: float) -> float:
        beyond = self.sf(t)
        if beyond < 1e-280:
            return self.high
        return float(self.a / (self.a + self.b) * special.betaincc(self.a + 1, self.b, min(1.0, max(0.0, t))) / beyond)


@dataclass(frozen=True)
class BoundedPareto:
    """The Pareto distribution bounded to ``low`` to ``high``, with tail exponent ``shape``."""

    low: float
    high: float
    shape: float

    def __post_init__(self) -> None:
        _positive(low=self.low, high=self.high, shape=self.shape)
        if not self.low < self.high or self.shape in (1.0, 2.0):
            raise ReservationError(
                "--dist: boundedpareto:LOW,HIGH,SHAPE needs LOW < HIGH and a SHAPE other than 1 and 2"
            )

    @property
    def mean(self) -> float:
        return self._moment(self.low, 1)

    @property
    def second_moment(self) -> float:
        return self._moment(self.low, 2)

    def _moment(self, t: float, k: int) -> float:
        """Return E[X^k | X > t]."""
        a = self.shape
        above = t ** (k - a) - self.high ** (k - a)
        return float(a / (a - k) * above / (t**-a - self.high**-a))

    def sf(self, t: float) -> float:
        t = min(max(t, self.low), self.high)
        a = self.shape
        return float((t**-a - self.high**-a) / (self.low**-a - self.high**-a))

    def pdf(self, t: float) -> float:
        a = self.shape
        inside = self.low <= t <= self.high
        return float(a * t ** (-a - 1) / (self.low**-a - self.high**-a)) if inside else 0.0

    def quantile(self, p: float) -> float:
        a = self.shape
        return float((self.low**-a - p * (self.low**-a - self.high**-a)) ** (-1 / a))

    def mean_beyond(self, t: float) -> float:
        return self._moment(max(t, self.low), 1) if t < self.high * (1 - 1e-12) else self.high


FORMS: Final[dict[str, tuple[str, Callable[..., Distribution]]]] = {
    "exponential": ("RATE", Exponential),
    "weibull": ("SCALE,SHAPE", Weibull),
    "gamma": ("SHAPE,RATE", Gamma),
    "lognormal": ("MU,SIGMA", Lognormal),
    "truncnormal": ("MU,SIGMA", TruncatedNormal),
    "pareto": ("SCALE,SHAPE", Pareto),
    "uniform": ("LOW,HIGH", Uniform),
    "beta": ("A,B", Beta),
    "boundedpareto": ("LOW,HIGH,SHAPE", BoundedPareto),
}
"""The distributions by name, with the parameters that each needs."""


def parse_distribution(text: str) -> Distribution:
    """Parse ``lognormal:3,0.5`` or ``history:FILE``; raise `ReservationError`, in one line, if the text is invalid."""
    name, _, rest = text.partition(":")
    if name == "history":
        return read_history(Path(rest))
    if name not in FORMS:
        raise ReservationError(f"--dist: {none_of(name, (*FORMS, 'history'))}")
    form, make = FORMS[name]
    try:
        numbers = [float(number) for number in rest.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != form.count(",") + 1 or not all(map(math.isfinite, numbers)):
        raise ReservationError(f"--dist: {text[:60]!r} is not {name}:{form}")
    try:
        return make(*numbers)
    except OverflowError:
        raise ReservationError(f"--dist: {text[:60]!r} is beyond what can be computed") from None


def read_history(path: Path) -> Empirical:
    """Read run times from a file with one number of seconds per line; empty lines and comments (#) are ignored."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ReservationError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    runs = []
    for number, line in enumerate(lines, 1):
        word = line.partition("#")[0].strip()
        if not word:
            continue
        try:
            run = float(word)
        except ValueError:
            run = math.nan
        if not 0 < run < math.inf:
            raise ReservationError(f"{path}:{number}: {word[:40]!r} is not a run time above 0 in seconds")
        runs.append(run)
    if not runs:
        raise ReservationError(f"{path}: has no run times")
    return Empirical(runs)
