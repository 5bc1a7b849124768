"""Strategies: how updates become the next version. Each named one is a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.strategy.base import Reducer as Reducer
    from hubless.strategy.base import ServerOptimizer as ServerOptimizer
    from hubless.strategy.base import Strategy as Strategy
    from hubless.strategy.base import Weighting as Weighting
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
    from hubless.strategy.look import Column as Column
    from hubless.strategy.look import Look as Look
    from hubless.strategy.look import Seen as Seen
    from hubless.strategy.look import hostile_among as hostile_among
    from hubless.strategy.look import shares as shares
    from hubless.strategy.multikrum import MultiKrum as MultiKrum
    from hubless.strategy.naming import kinds as kinds
    from hubless.strategy.naming import parse as parse
    from hubless.strategy.normbound import NormBound as NormBound
    from hubless.strategy.optimizers import Momentum as Momentum
    from hubless.strategy.optimizers import Replace as Replace
    from hubless.strategy.optimizers import ServerAdagrad as ServerAdagrad
    from hubless.strategy.optimizers import ServerAdam as ServerAdam
    from hubless.strategy.optimizers import ServerYogi as ServerYogi
    from hubless.strategy.reducers import Mean as Mean
    from hubless.strategy.reducers import Median as Median
    from hubless.strategy.reducers import Middle as Middle
    from hubless.strategy.reducers import NearMedian as NearMedian
    from hubless.strategy.reducers import TrimmedMean as TrimmedMean
    from hubless.strategy.weighting import Buffer as Buffer
    from hubless.strategy.weighting import ByExamples as ByExamples
    from hubless.strategy.weighting import ByStaleness as ByStaleness
    from hubless.strategy.weighting import Capped as Capped
    from hubless.strategy.weighting import Decay as Decay
    from hubless.strategy.weighting import Equally as Equally
    from hubless.strategy.weighting import Mixing as Mixing

# a new strategy is one new file: nothing has to be listed here for it to be found
__getattr__, __dir__ = exported(__name__, kinds="naming")
