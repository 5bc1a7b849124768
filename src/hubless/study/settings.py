"""Settings of the continual study, read from a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from hubless.checks import fitting, meant, number, one_of, texts, whole
from hubless.data.population import Population
from hubless.errors import DataError, HublessError, TaskError
from hubless.select.naming import named, runs_code
from hubless.study.figures.comparison import SELECTORS
from hubless.study.grid import cells
from hubless.train.text.language import SIZES, Size

RATES: Mapping[str, Mapping[str, float]] = {
    "fedavg": {"client": 0.1},
    "fedopt": {"client": 0.1, "server": 0.01},
}
TRIED: Mapping[str, Sequence[float]] = {"client": (0.1, 0.3, 1.0), "server": (0.001, 0.003, 0.01)}
_SECTIONS = {
    "data": (
        "source",
        "file",
        "window",
        "clients",
        "months",
        "utterances",
        "most",
        "vocabulary",
        "length",
    ),
    "grid": ("algorithms", "selectors", "horizons", "sets", "share"),
    "train": (
        "model",
        "cohort",
        "rounds",
        "batch",
        "precision",
        "carry",
        "rates",
        "seed",
        "save_every",
    ),
    "tune": ("tuned_on", "tried"),
}

_SOURCES = ("fleet", "chat", "git", "gitlog")
_LEAST = {
    "clients": 1,
    "months": 1,
    "most": 1,
    "vocabulary": 1,
    "length": 3,
    "sets": 1,
    "cohort": 1,
    "rounds": 1,
    "batch": 1,
    "seed": 0,
    "save_every": 1,
}
"""What numbers of things are at the least: a text has a start, an end and a word."""
_MORE_RATES = {"fedopt": ("tau",)}
_NOT_OF_A_CELL = ("algorithms", "selectors", "horizons", "sets", "save_every", *_SECTIONS["tune"])


@dataclass(frozen=True)
class Settings:
    """What is studied, on what, and how it is trained.

    `source` is fleet (made up: so many `clients` and `months`, with `utterances` on average and at
    `most` for a client), chat, git (with a `file`), or gitlog (with the `file` a clone). `window`
    bounds the months. `rounds` are those of a horizon, divided among its segments; `carry` takes
    the server optimizer's state from one to the next. Tuning tries rates on the horizon `tuned_on`.
    """

    title: str = "Who trains, and when"
    source: Literal["fleet", "chat", "git", "gitlog"] = "fleet"
    file: str | None = None
    window: tuple[str, str] | None = None
    clients: int = 1000
    months: int = 12
    utterances: float = 60.0
    most: int = 100_000
    vocabulary: int = 2000
    length: int = 16
    algorithms: Sequence[str] = ("fedavg", "fedopt")
    selectors: Sequence[str] = tuple(SELECTORS)
    horizons: Sequence[str] = ("3", "6", "11", "3x2")
    sets: int = 3
    share: float = 0.5
    model: str | Size = "tiny"
    cohort: int = 100
    rounds: int = 30
    batch: int = 16
    precision: Literal["float32", "tf32", "bfloat16"] = "float32"
    carry: bool = True
    rates: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: RATES)
    seed: int = 0
    save_every: int = 10
    tuned_on: str = "3"
    tried: Mapping[str, Sequence[float]] = field(default_factory=lambda: TRIED)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            whole(name, getattr(self, name), least=least, error=DataError)
        number("utterances", self.utterances, above=0, error=DataError)
        number("share", self.share, above=0, most=1, error=DataError)
        one_of("precision", self.precision, ("float32", "tf32", "bfloat16"), error=DataError)
        for name in ("algorithms", "selectors", "horizons"):
            texts(name, getattr(self, name), "texts", error=DataError)
        for algorithm in self.algorithms:
            if algorithm not in RATES:
                raise DataError(
                    f"there is no algorithm {algorithm!r}{meant(algorithm, RATES)}: there are "
                    f"{sorted(RATES)}"
                )
        # what is empty, or there twice, is refused here and not once data are prepared
        cells(self.axes)
        for horizon in (*self.horizons, self.tuned_on):
            segments_of(horizon)
        self._check_rates()
        for selector in self.selectors:
            # what runs code does so when it is needed, and not because settings were read
            if not runs_code(selector):
                named(selector)
        if isinstance(self.model, str) and self.model not in SIZES:
            near = meant(self.model, SIZES)
            raise DataError(f"there is no model {self.model!r}{near}: there are {', '.join(SIZES)}")
        if self.source not in _SOURCES:
            near = meant(str(self.source), _SOURCES)
            raise DataError(f"there is no source {self.source!r}{near}: fleet, chat, git or gitlog")
        if self.source == "gitlog" and self.file is None:
            raise DataError("source gitlog needs a file: the folder of a clone")

    def _check_rates(self) -> None:
        takes = "rates by algorithm, such as { fedavg = { client = 0.1 } }"
        fitting("rates", self.rates, isinstance(self.rates, Mapping), takes, error=DataError)
        for algorithm, rates in self.rates.items():
            if algorithm not in RATES:
                near = meant(algorithm, RATES)
                raise DataError(f"rates has {algorithm!r}{near}, where {', '.join(RATES)} may be")
            fitting("rates", rates, isinstance(rates, Mapping), takes, error=DataError)
            may = [*RATES[algorithm], *_MORE_RATES.get(algorithm, ())]
            for name, rate in rates.items():
                if name not in may:
                    raise DataError(
                        f"rates.{algorithm} has {name!r}, where {', '.join(may)} may be"
                    )
                number(f"rates.{algorithm}.{name}", rate, above=0, error=DataError)
        for algorithm in self.algorithms:
            if missing := RATES[algorithm].keys() - self.rates.get(algorithm, {}).keys():
                raise DataError(f"rates.{algorithm} lacks {', '.join(sorted(missing))}")
        takes = "lists of rates by name, such as { client = [0.1, 0.3] }"
        fitting("tried", self.tried, isinstance(self.tried, Mapping), takes, error=DataError)
        for knob, values in self.tried.items():
            if knob not in TRIED or not values:
                raise DataError(f"tried has {knob!r}: rates are tried for {', '.join(TRIED)}")
            fitting("tried", values, isinstance(values, list | tuple), takes, error=DataError)
            for rate in values:
                number(f"tried.{knob}", rate, above=0, error=DataError)

    @classmethod
    def read(cls, path: Path, run_code: bool = False) -> Settings:
        """Read a file, refusing what it cannot mean anything by.

        A selector may be one of a Python file, `file.py:name`. As that is run, it is refused
        unless `run_code` says that whoever reads the settings trusts it.
        """
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise DataError(f"there is no file {path}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path} is not TOML: {error}") from None
        given: dict[str, Any] = {}
        for section, value in document.items():
            if section == "title":
                given["title"] = _as_meant("title", value, path)
                continue
            if section not in _SECTIONS or not isinstance(value, dict):
                near = meant(section, _SECTIONS)
                raise DataError(
                    f"{path} has {section!r}{near}, where title and {list(_SECTIONS)} may be"
                )
            for name, setting in value.items():
                if name not in _SECTIONS[section]:
                    names = ", ".join(_SECTIONS[section])
                    near = meant(name, _SECTIONS[section])
                    raise DataError(f"{path}: [{section}] has {name!r}{near}, where {names} may be")
                given[name] = _as_meant(name, setting, path)
        try:
            settings = cls(**given)
            files = [selector for selector in settings.selectors if runs_code(selector)]
            if files and not run_code:
                raise DataError(
                    f"selectors are taken from files, which are run for it: {', '.join(files)}. "
                    "Read them, and if you trust them, say --run-code"
                )
            for selector in files:
                named(selector)
        except HublessError as error:
            raise DataError(f"{path}: {error}") from None
        return settings

    @property
    def axes(self) -> dict[str, Sequence[str]]:
        """The grid's."""
        return {
            "algorithm": self.algorithms,
            "selector": self.selectors,
            "horizon": self.horizons,
            "set": [str(place) for place in range(self.sets)],
        }

    @property
    def about_data(self) -> dict[str, str]:
        """What prepared data depend on."""
        return {name: self.as_texts[name] for name in (*_SECTIONS["data"], "share", "seed")}

    @property
    def about_cells(self) -> dict[str, str]:
        """What a cell's result depends on besides the cell; more cells may come at any time."""
        return {name: text for name, text in self.as_texts.items() if name not in _NOT_OF_A_CELL}

    @property
    def about_trials(self) -> dict[str, str]:
        """What a trial of rates depends on, besides those it tries."""
        fixed = {
            algorithm: {name: rate for name, rate in rates.items() if name not in TRIED}
            for algorithm, rates in self.rates.items()
        }
        where = {"selector": self.selectors[0], "tuned_on": self.tuned_on}
        return {**self.about_cells, "rates": str(fixed), **where}

    @property
    def as_texts(self) -> dict[str, str]:
        """All of it as text."""
        return {f.name: str(getattr(self, f.name)) for f in fields(self) if f.name != "title"}

    @property
    def shown(self) -> dict[str, str]:
        """What matters to who reads the results, as people write it."""
        hidden = {"title", "save_every", *_SECTIONS["tune"]}
        if self.source != "fleet":
            hidden |= {"clients", "months", "utterances", "most"}
        settings = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in hidden}
        return {name: _written(value) for name, value in settings.items() if value is not None}

    def messages(self, data: Path | None) -> Population:
        """The messages, with their clients and times."""
        from hubless.data.sources import chat, fleet, git, gitlog

        if self.source == "fleet":
            habits = fleet.Habits(utterances=self.utterances, most=self.most)
            return fleet.generate(self.clients, months=self.months, seed=self.seed, habits=habits)
        if self.source == "chat":
            return chat.load(data)
        if self.source == "git":
            return git.load(data, file=self.file)
        return gitlog.load(Path(str(self.file)))


def segments_of(horizon: str) -> tuple[int, int]:
    """How many segments a horizon has, and the months of each.

    >>> segments_of("3x2"), segments_of("11")
    ((3, 2), (1, 11))
    """
    count, _, months = horizon.rpartition("x")
    numbers = (months, count or "1")
    if not all(each.isdecimal() and int(each) for each in numbers):
        raise DataError(f"a horizon is months, such as 6, or segments x months (3x2): {horizon!r}")
    return int(count or 1), int(months)


def _written(value: Any) -> str:
    """A setting without what only a program needs.

    >>> _written({"fedopt": {"client": 0.1, "server": 0.01}}), _written(("3", "6"))
    ('fedopt: client 0.1, server 0.01', '3, 6')
    """
    if isinstance(value, Size):
        return f"{value.layers} layers of width {value.width}, {value.heads} heads"
    if isinstance(value, Mapping):
        rates = {name: ", ".join(f"{k} {v:g}" for k, v in of.items()) for name, of in value.items()}
        return "; ".join(f"{name}: {text}" for name, text in rates.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) if isinstance(value, str | int | float) else ", ".join(map(str, value))


def _as_meant(name: str, setting: Any, path: Path) -> Any:
    if name == "model" and isinstance(setting, dict):
        try:
            return Size(**setting)
        except (TypeError, TaskError):
            raise DataError(
                f"{path}: a model is one of {', '.join(SIZES)}, or has width, layers and heads"
            ) from None
    if name == "window":
        if not (isinstance(setting, list) and len(setting) == 2):
            raise DataError(f"{path}: a window is two months, such as ['2015-07', '2016-07']")
        return tuple(setting)
    if name == "file" and not isinstance(setting, str):
        raise DataError(f"{path}: file is a path, and cannot be {setting!r}")
    if name == "model" and not isinstance(setting, str):
        raise DataError(f"{path}: model cannot be {setting!r}")
    expected = next(f for f in fields(Settings) if f.name == name).default
    if isinstance(expected, bool | int | float | str) and name not in ("model", "file"):
        wanted = (int, float) if isinstance(expected, float) else type(expected)
        flags = isinstance(setting, bool), isinstance(expected, bool)
        if not isinstance(setting, wanted) or flags[0] != flags[1]:
            raise DataError(f"{path}: {name} cannot be {setting!r}")
    if isinstance(setting, list):
        return tuple(str(choice) for choice in setting)
    return setting
