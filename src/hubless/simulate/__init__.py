"""Simulating many clients on one machine, one GPU or a Ray cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.simulate.callbacks import BestModel as BestModel
    from hubless.simulate.callbacks import Callback as Callback
    from hubless.simulate.callbacks import Checkpoint as Checkpoint
    from hubless.simulate.callbacks import EarlyStop as EarlyStop
    from hubless.simulate.callbacks import Remembering as Remembering
    from hubless.simulate.engine.machine import Local as Local
    from hubless.simulate.engine.ray import Ray as Ray
    from hubless.simulate.simulation import Simulation as Simulation
    from hubless.simulate.times import Buffered as Buffered
    from hubless.simulate.times import Devices as Devices
    from hubless.simulate.times import Pace as Pace
    from hubless.simulate.times import VirtualClock as VirtualClock
    from hubless.simulate.times import constant as constant
    from hubless.simulate.times import keep_in_time as keep_in_time
    from hubless.simulate.times import lognormal as lognormal
    from hubless.simulate.times import uniform as uniform

__getattr__, __dir__ = exported(__name__)
