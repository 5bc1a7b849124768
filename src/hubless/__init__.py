"""hubless: federated learning without a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.data.population import Population as Population
    from hubless.errors import HublessError as HublessError
    from hubless.federate.federation import Federation as Federation
    from hubless.federate.joining import join as join
    from hubless.federate.pace import Anytime as Anytime
    from hubless.federate.pace import Rounds as Rounds
    from hubless.federate.picking.draw import Selection as Selection
    from hubless.federate.picking.participation import Participation as Participation
    from hubless.federate.rounds.deadline import Adaptive as Adaptive
    from hubless.simulate.callbacks import BestModel as BestModel
    from hubless.simulate.callbacks import Checkpoint as Checkpoint
    from hubless.simulate.callbacks import EarlyStop as EarlyStop
    from hubless.simulate.engine.machine import Local as Local
    from hubless.simulate.engine.ray import Ray as Ray
    from hubless.simulate.simulation import Simulation as Simulation
    from hubless.simulate.times import Buffered as Buffered
    from hubless.simulate.times import Devices as Devices
    from hubless.simulate.times import Pace as Pace
    from hubless.store.bucket import Bucket as Bucket
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
    from hubless.strategy.normbound import NormBound as NormBound
    from hubless.train.optimizers import SGD as SGD
    from hubless.train.optimizers import Adam as Adam
    from hubless.train.optimizers import AdamW as AdamW
    from hubless.train.recipe import Recipe as Recipe
    from hubless.train.task import Task as Task

__version__ = "0.1.0"

__getattr__, __dir__ = exported(__name__)
