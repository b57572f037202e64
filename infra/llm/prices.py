"""What a model's tokens cost, from a dated file that the user may edit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from accelopt_core.ports import Usage
from infra.toml_files import BadToml, read_toml

SHIPPED_PRICES = Path(__file__).with_name("prices.toml")

_EXTENSION = re.compile(r"-(?:\d{8}|\d{4}-\d{2}-\d{2}|latest)")


class BadPriceFile(Exception):
    """The price file cannot be used; the line says where and why."""


@dataclass(frozen=True)
class Rates:
    """US dollars per million tokens."""

    input: float
    output: float
    cached: float
    cache_write: float

    def cost_usd(self, usage: Usage) -> float:
        return (
            usage.input_tokens * self.input
            + usage.output_tokens * self.output
            + usage.cached_input_tokens * self.cached
            + usage.cache_write_tokens * self.cache_write
        ) / 1e6


_FIELDS = {f"{which}{each.name}" for which in ("", "long_") for each in fields(Rates)} | {"long_above"}


@dataclass(frozen=True)
class Price:
    rates: Rates
    long_above: int | None = None
    """Input tokens of one prompt, cached ones included, above which `long_rates` apply."""
    long_rates: Rates | None = None

    def cost_usd(self, usage: Usage) -> float:
        """Dollars of one call."""
        prompt = usage.input_tokens + usage.cached_input_tokens + usage.cache_write_tokens
        if self.long_above is not None and self.long_rates is not None and prompt > self.long_above:
            return self.long_rates.cost_usd(usage)
        return self.rates.cost_usd(usage)


@dataclass(frozen=True)
class PriceList:
    as_of: str
    models: Mapping[str, Price]

    def price_of(self, model: str) -> Price | None:
        """By exact name, or as a dated form of a name on the list. None: unknown."""
        name = model.rsplit("/", 1)[-1]
        if name in self.models:
            return self.models[name]
        for known in sorted(self.models, key=len, reverse=True):
            if name.startswith(known) and _EXTENSION.fullmatch(name[len(known) :]):
                return self.models[known]
        return None

    def cost_usd(self, model: str, usage: Usage) -> float | None:
        price = self.price_of(model)
        return None if price is None else price.cost_usd(usage)


def load_prices(path: Path = SHIPPED_PRICES) -> PriceList:
    """Raises BadPriceFile for a file that is missing, malformed, or holds a name or number it should not."""
    try:
        document = read_toml(path)
    except BadToml as error:
        raise BadPriceFile(f"price file {error}") from error
    models = document.get("models")
    as_of = document.get("as_of")
    if not isinstance(models, dict) or not isinstance(as_of, str):
        raise BadPriceFile(f'price file {path}: needs as_of = "<date>" and a [models."<name>"] table per model')
    return PriceList(as_of, {name: _price(path, name, entry) for name, entry in models.items()})


def _price(path: Path, name: str, entry: object) -> Price:
    where = f"price file {path}, model {name}"
    if not isinstance(entry, dict):
        raise BadPriceFile(f"{where}: needs a table with input and output")
    unknown = sorted(set(entry) - _FIELDS)
    if unknown:
        raise BadPriceFile(f"{where}: unknown field {unknown[0]}; known are {', '.join(sorted(_FIELDS))}")
    for field, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
            raise BadPriceFile(f"{where}: {field} = {value!r} is not a number >= 0")
    if "input" not in entry or "output" not in entry:
        raise BadPriceFile(f"{where}: needs both input and output")
    number: dict[str, float] = {field: float(value) for field, value in entry.items()}
    cached, cache_write = (number.get(name, number["input"]) for name in ("cached", "cache_write"))
    rates = Rates(number["input"], number["output"], cached, cache_write)
    if "long_above" not in number:
        return Price(rates)
    long = {each.name: number.get(f"long_{each.name}", getattr(rates, each.name)) for each in fields(Rates)}
    return Price(rates, int(number["long_above"]), Rates(**long))
