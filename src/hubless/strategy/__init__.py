"""Strategies: how updates become the next version. Each named one is a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.strategy.base import Strategy as Strategy
    from hubless.strategy.bulyan import Bulyan as Bulyan
    from hubless.strategy.centredclipping import CentredClipping as CentredClipping
    from hubless.strategy.fedadagrad import FedAdagrad as FedAdagrad
    from hubless.strategy.fedadam import FedAdam as FedAdam
    from hubless.strategy.fedasync import FedAsync as FedAsync
    from hubless.strategy.fedavg import FedAvg as FedAvg
    from hubless.strategy.fedavgm import FedAvgM as FedAvgM
    from hubless.strategy.fedbuff import FedBuff as FedBuff
    from hubless.strategy.fedmedian import FedMedian as FedMedian
    from hubless.strategy.fedtrimmedmean import FedTrimmedMean as FedTrimmedMean
    from hubless.strategy.fedyogi import FedYogi as FedYogi
    from hubless.strategy.geometricmedian import GeometricMedian as GeometricMedian
    from hubless.strategy.krum import Krum as Krum
    from hubless.strategy.multikrum import MultiKrum as MultiKrum
    from hubless.strategy.naming import kinds as kinds
    from hubless.strategy.naming import parse as parse
    from hubless.strategy.normbound import NormBound as NormBound

_HOMES = {
    "Strategy": "base",
    "kinds": "naming",
    "parse": "naming",
}

# a new strategy is one new file: nothing has to be listed here for it to be found
__getattr__, __dir__ = exported(__name__, _HOMES, kinds="naming")
