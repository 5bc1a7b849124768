"""What a client does: a task (model, loss, metrics) and a recipe (how to train on its data)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubless.lazy import exported

if TYPE_CHECKING:
    from hubless.train.losses import IGNORED as IGNORED
    from hubless.train.losses import accuracy as accuracy
    from hubless.train.losses import binary_cross_entropy as binary_cross_entropy
    from hubless.train.losses import cross_entropy as cross_entropy
    from hubless.train.losses import nll as nll
    from hubless.train.losses import squared_error as squared_error
    from hubless.train.losses import tokens as tokens
    from hubless.train.optimizers import SGD as SGD
    from hubless.train.optimizers import Adam as Adam
    from hubless.train.optimizers import AdamW as AdamW
    from hubless.train.optimizers import Optimizer as Optimizer
    from hubless.train.recipe import Recipe as Recipe
    from hubless.train.task import Task as Task
    from hubless.train.values import GradientNorm as GradientNorm
    from hubless.train.values import HighLosses as HighLosses
    from hubless.train.values import LabelCount as LabelCount
    from hubless.train.values import LossOverRoot as LossOverRoot
    from hubless.train.values import MeanLoss as MeanLoss
    from hubless.train.values import UpdateNorm as UpdateNorm
    from hubless.train.values import ValueOfLosses as ValueOfLosses

__getattr__, __dir__ = exported(__name__)
