"""How often each client of a simulation trained, in memory that what is read cannot blow up."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

_PAGE = 64
_PAGES = 1 << 17
_LARGEST = 1 << 40


class Allowance:
    """So many pages of clients may all runs take together: eight million clients, 130 MiB."""

    def __init__(self, left: int = _PAGES) -> None:
        self.left = left

    def take(self) -> bool:
        """Whether there is one more page to have."""
        self.left -= self.left > 0
        return self.left > 0


class Tally:
    """Counts by client, in pages of clients whose numbers are next to each other.

    >>> tally = Tally(Allowance())
    >>> tally.add([3, 5, 3], [20, 7, 20]), list(tally.rows())
    (None, [(3, 2, 20), (5, 1, 7)])
    """

    def __init__(self, allowance: Allowance) -> None:
        self.clients = 0
        """How many trained at least once."""
        self._allowance = allowance
        self._times: dict[int, array[int]] = {}
        self._examples: dict[int, array[int]] = {}

    def add(self, clients: Sequence[int], examples: Sequence[int] = ()) -> None:
        """Count clients that trained, and what they trained on, if that was said of all."""
        sizes = examples if len(examples) == len(clients) else [-1] * len(clients)
        for client, size in zip(clients, sizes, strict=True):
            page, place = divmod(client, _PAGE)
            times = self._times.get(page)
            if times is None:
                if not self._allowance.take():
                    continue
                times = self._times[page] = array("L", bytes(array("L").itemsize * _PAGE))
                self._examples[page] = array("q", [-1]) * _PAGE
            self.clients += not times[place]
            times[place] += 1
            largest = self._examples[page]
            largest[place] = max(largest[place], min(size, _LARGEST))

    def take_back(self, clients: Sequence[int]) -> None:
        """Count them once less."""
        for client in clients:
            page, place = divmod(client, _PAGE)
            times = self._times.get(page)
            if times is not None and times[place]:
                times[place] -= 1
                self.clients -= not times[place]

    def rows(self) -> Iterator[tuple[int, int, int]]:
        """Each client that trained, how often, and on how many examples; -1 if nobody said."""
        for page in sorted(self._times):
            pairs = zip(self._times[page], self._examples[page], strict=True)
            for place, (times, examples) in enumerate(pairs):
                if times:
                    yield page * _PAGE + place, times, examples

    def forget(self) -> None:
        """Give back what this took."""
        self._allowance.left += len(self._times)
        self._times, self._examples = {}, {}
