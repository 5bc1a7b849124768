"""Looking on: a run in the terminal, on a page, in a report, or in the tracker of your choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.watch.feed import Feed as Feed
    from hubless.watch.feed import open_feed as open_feed
    from hubless.watch.fold.overview import Overview as Overview
    from hubless.watch.fold.overview import look as look
    from hubless.watch.fold.run import handles as handles
    from hubless.watch.live.terminal import watch_terminal as watch_terminal
    from hubless.watch.live.web import serve as serve
    from hubless.watch.report.page import write_report as write_report
    from hubless.watch.trackers import Point as Point
    from hubless.watch.trackers import Run as Run
    from hubless.watch.trackers import Tracker as Tracker
    from hubless.watch.trackers import to_mlflow as to_mlflow
    from hubless.watch.trackers import to_tensorboard as to_tensorboard
    from hubless.watch.trackers import to_wandb as to_wandb

__getattr__, __dir__ = exported(__name__)
