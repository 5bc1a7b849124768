"""Wrong calls of a simulation and its parts: each is an error of one paragraph, before anything."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

import hubless
from hubless import errors
from hubless.data import Population
from hubless.privacy.accounting import Cost, composed, sigma_for
from hubless.privacy.ledger import Ledger
from hubless.privacy.mechanisms import Count, Gaussian, Laplace, SparseVector
from hubless.select import (
    Active,
    Activity,
    AtMost,
    Fixed,
    Heavy,
    Oort,
    OptimalSampling,
    PowerOfChoice,
    Reachable,
    Refreshed,
    Uniform,
    Weighted,
)
from hubless.simulate.callbacks import BestModel, Checkpoint, EarlyStop
from hubless.simulate.engine.executor import LocalExecutor
from hubless.simulate.engine.machine import Local
from hubless.simulate.engine.ray import Ray, RayEngine
from hubless.simulate.times import Buffered, Devices, Pace, constant, lognormal, uniform
from hubless.strategy.base import Strategy
from hubless.strategy.optimizers import Replace
from hubless.strategy.reducers import Mean
from hubless.strategy.weighting import Capped, Equally
from hubless.train.losses import accuracy
from hubless.train.optimizers import SGD, Adam, AdamW
from hubless.train.recipe import Recipe
from hubless.train.task import TAKEN, Task
from hubless.train.values import LossOverRoot
from tests.simulate.worlds import mlp, people, simulation

NAN, INF = math.nan, math.inf


def made(**changes: Any) -> Callable[[], object]:
    """A simulation with something wrong about it."""
    return lambda: simulation(**changes)


def ran(rounds: Any) -> Callable[[], object]:
    return lambda: simulation().run(rounds)


def call(kind: Any, *given: Any, **named: Any) -> Callable[[], object]:
    return lambda: kind(*given, **named)


def evaluated(test: Any) -> Callable[[], object]:
    return lambda: simulation().evaluate(test)


def columns() -> dict[str, Any]:
    return dict(people().columns)


# what is called, and what the message has to name
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "task class": (made(task=Task), "task="),
    "task module": (made(task=mlp()), "task="),
    "task None": (made(task=None), "task="),
    "population columns": (made(population=columns()), "population="),
    "population class": (made(population=Population), "population="),
    "population path": (made(population="people"), "population="),
    "test columns": (made(test=columns()), "test="),
    "test pair": (made(test=(np.zeros(3), np.zeros(3))), "test="),
    "test class": (made(test=Population), "test="),
    "recipe class": (made(recipe=Recipe), "recipe="),
    "recipe optimizer": (made(recipe=SGD(0.1)), "recipe="),
    "recipe number": (made(recipe=0), "recipe="),
    "strategy class": (made(strategy=hubless.FedAvg), "strategy="),
    "strategy text": (made(strategy="FedAvg"), "strategy="),
    "strategy empty text": (made(strategy=""), "strategy="),
    "selector class": (made(selector=Uniform), "selector="),
    "selector class of many settings": (made(selector=Oort), "selector="),
    "selector text": (made(selector="uniform"), "selector="),
    "selector of two": (made(selector=lambda roster, k: [0]), "selector="),
    "value class": (made(value=LossOverRoot), "value="),
    "value text": (made(value="loss"), "value="),
    "value of one": (made(value=lambda losses: losses), "value="),
    "private class": (made(value=LossOverRoot(), private=Laplace), "private="),
    "private number": (made(value=LossOverRoot(), private=1.0), "private="),
    "private without value": (made(private=Count(1.0)), "private"),
    "ledger alone": (made(value=LossOverRoot(), ledger=Ledger(11)), "ledger="),
    "ledger number": (made(value=LossOverRoot(), private=Count(1.0), ledger=3), "ledger="),
    "ledger of others": (
        made(value=LossOverRoot(), private=Count(1.0), ledger=Ledger(3)),
        "ledger=",
    ),
    "cohort True": (made(cohort=True), "cohort"),
    "cohort 0": (made(cohort=0), "cohort"),
    "cohort 0.0": (made(cohort=0.0), "cohort"),
    "cohort -1": (made(cohort=-1), "cohort"),
    "cohort 2.0": (made(cohort=2.0), "cohort"),
    "cohort text": (made(cohort="10"), "cohort"),
    "cohort nan": (made(cohort=NAN), "cohort"),
    "cohort inf": (made(cohort=INF), "cohort"),
    "cohort None": (made(cohort=None), "cohort"),
    "cohort 1000": (made(cohort=1000), "cohort"),
    "seed -1": (made(seed=-1), "seed="),
    "seed 1.5": (made(seed=1.5), "seed="),
    "seed text": (made(seed="x"), "seed="),
    "seed True": (made(seed=True), "seed="),
    "seed None": (made(seed=None), "seed="),
    "engine text": (made(engine="ray"), "engine="),
    "engine class": (made(engine=Local), "engine="),
    "engine number": (made(engine=4), "engine="),
    "evaluate_every -1": (made(evaluate_every=-1), "evaluate_every="),
    "evaluate_every 1.5": (made(evaluate_every=1.5), "evaluate_every="),
    "evaluate_every text": (made(evaluate_every="5"), "evaluate_every="),
    "evaluate_every True": (made(evaluate_every=True), "evaluate_every="),
    "devices True": (made(devices=True), "devices="),
    "devices class": (made(devices=Devices), "devices="),
    "pace text": (made(pace="async"), "pace="),
    "pace class": (made(pace=Buffered), "pace="),
    "pace number": (made(pace=1.5), "pace="),
    "callbacks number": (made(callbacks=3), "callbacks="),
    "callbacks alone": (made(callbacks=EarlyStop(patience=1)), "callbacks="),
    "callbacks of a class": (made(callbacks=[BestModel]), "callbacks="),
    "callbacks of a text": (made(callbacks=["x"]), "callbacks="),
    "callbacks a text": (made(callbacks="stop"), "callbacks="),
    "callbacks of one": (made(callbacks=[lambda row: None]), "callbacks="),
    "callback of another metric": (
        made(callbacks=[EarlyStop("acuracy", patience=1)], test=people()),
        "accuracy",
    ),
    "callback without a test": (made(callbacks=[BestModel()]), "test="),
    "events number": (made(events=3), "events="),
    "events of a number": (made(events=[3]), "events="),
    "events a folder": (made(events="."), "events="),
    "events in no folder": (made(events="nowhere/x.jsonl"), "events="),
    "name number": (made(name=3), "name="),
    "name empty": (made(name=""), "name="),
    "unbiased and a median": (
        made(selector=OptimalSampling(), strategy=hubless.FedMedian()),
        "unbiased",
    ),
    "rounds 0": (ran(0), "rounds="),
    "rounds -1": (ran(-1), "rounds="),
    "rounds 1.5": (ran(1.5), "rounds="),
    "rounds 2.0": (ran(2.0), "rounds="),
    "rounds nan": (ran(NAN), "rounds="),
    "rounds inf": (ran(INF), "rounds="),
    "rounds text": (ran("10"), "rounds="),
    "rounds True": (ran(True), "rounds="),
    "rounds None": (ran(None), "rounds="),
    "evaluate without a test": (evaluated(None), "test"),
    "evaluate on columns": (evaluated(columns()), "test="),
    "evaluate on others": (evaluated(Population.pooled({"y": np.zeros(3)})), "'x'"),
    "resume a number": (lambda: simulation().resume(cast(Any, 3)), "folder="),
    "save to a number": (lambda: simulation().save(cast(Any, 3)), "folder="),
    "go on from params": (lambda: simulation().go_on_from(cast(Any, hubless)), "earlier="),
    "module class": (call(Task, nn.Linear), "module="),
    "module function": (call(Task, lambda x: x), "module="),
    "loss class": (call(Task, mlp(), nn.CrossEntropyLoss), "loss="),
    "loss text": (call(Task, mlp(), "cross_entropy"), "loss="),
    "metrics list": (call(Task, mlp(), metrics=[accuracy]), "metrics="),
    "metrics function": (call(Task, mlp(), metrics=accuracy), "metrics="),
    "metrics of a text": (call(Task, mlp(), metrics={"accuracy": "accuracy"}), "metrics="),
    "metrics of numbers": (call(Task, mlp(), metrics={1: accuracy}), "metrics="),
    "metrics with a loss": (call(Task, mlp(), metrics={"loss": accuracy}), "metrics="),
    "metrics with rounds": (call(Task, mlp(), metrics={"round": accuracy}), "metrics="),
    "inputs text": (call(Task, mlp(), inputs="x"), "inputs="),
    "inputs none": (call(Task, mlp(), inputs=()), "inputs="),
    "inputs number": (call(Task, mlp(), inputs=3), "inputs="),
    "inputs of numbers": (call(Task, mlp(), inputs=[0]), "inputs="),
    "targets text": (call(Task, mlp(), targets="y"), "targets="),
    "targets of numbers": (call(Task, mlp(), targets=(1,)), "targets="),
    "prepare text": (call(Task, mlp(), prepare="float"), "prepare="),
    "optimizer class": (call(Recipe, SGD), "optimizer="),
    "optimizer text": (call(Recipe, "sgd"), "optimizer="),
    "optimizer number": (call(Recipe, 0.1), "optimizer="),
    "optimizer of torch": (call(Recipe, torch.optim.SGD(mlp().parameters())), "optimizer="),
    "epochs 0": (call(Recipe, epochs=0), "epochs="),
    "epochs 1.5": (call(Recipe, epochs=1.5), "epochs="),
    "epochs 2.0": (call(Recipe, epochs=2.0), "epochs="),
    "epochs True": (call(Recipe, epochs=True), "epochs="),
    "epochs None": (call(Recipe, epochs=None), "epochs="),
    "epochs text": (call(Recipe, epochs="2"), "epochs="),
    "epochs nan": (call(Recipe, epochs=NAN), "epochs="),
    "batch 0": (call(Recipe, batch=0), "batch="),
    "batch inf": (call(Recipe, batch=INF), "batch="),
    "batch text": (call(Recipe, batch="all"), "batch="),
    "steps -1": (call(Recipe, steps=-1), "steps="),
    "clip 0": (call(Recipe, clip=0), "clip="),
    "clip nan": (call(Recipe, clip=NAN), "clip="),
    "clip text": (call(Recipe, clip="1"), "clip="),
    "clip True": (call(Recipe, clip=True), "clip="),
    "proximal -1": (call(Recipe, proximal=-1), "proximal="),
    "proximal inf": (call(Recipe, proximal=INF), "proximal="),
    "proximal None": (call(Recipe, proximal=None), "proximal="),
    "decay 0": (call(Recipe, decay=0), "decay="),
    "decay nan": (call(Recipe, decay=NAN), "decay="),
    "decay -1": (call(Recipe, decay=-1), "decay="),
    "decay -0.5": (call(Recipe, decay=-0.5), "decay="),
    "shuffle text": (call(Recipe, shuffle="no"), "shuffle="),
    "precision half": (call(Recipe, precision="half"), "precision="),
    "precision dtype": (call(Recipe, precision=torch.bfloat16), "precision="),
    "lr 0": (call(SGD, 0), "lr="),
    "lr -1": (call(SGD, -1), "lr="),
    "lr nan": (call(SGD, NAN), "lr="),
    "lr inf": (call(SGD, INF), "lr="),
    "lr text": (call(SGD, "0.1"), "lr="),
    "lr True": (call(SGD, True), "lr="),
    "momentum 1": (call(SGD, 0.1, 1), "momentum="),
    "momentum -0.1": (call(SGD, 0.1, -0.1), "momentum="),
    "momentum 1.5": (call(SGD, 0.1, 1.5), "momentum="),
    "momentum nan": (call(SGD, 0.1, NAN), "momentum="),
    "momentum True": (call(SGD, 0.1, True), "momentum="),
    "weight_decay -1": (call(SGD, 0.1, weight_decay=-1), "weight_decay="),
    "nesterov alone": (call(SGD, 0.1, nesterov=True), "nesterov="),
    "nesterov number": (call(SGD, 0.1, 0.9, nesterov=1), "nesterov="),
    "adam lr None": (call(Adam, None), "lr="),
    "adam beta1 1": (call(Adam, beta1=1), "beta1="),
    "adam beta2 -1": (call(Adam, beta2=-1), "beta2="),
    "adam eps 0": (call(Adam, eps=0), "eps="),
    "adamw beta1 nan": (call(AdamW, beta1=NAN), "beta1="),
    "adamw weight_decay text": (call(AdamW, weight_decay="0"), "weight_decay="),
    "over 0.5": (call(Pace, 0.5), "over="),
    "over nan": (call(Pace, NAN), "over="),
    "over text": (call(Pace, "2"), "over="),
    "deadline 0": (call(Pace, deadline=0), "deadline="),
    "deadline inf": (call(Pace, deadline=INF), "deadline="),
    "deadline text": (call(Pace, deadline="10s"), "deadline="),
    "deadline True": (call(Pace, deadline=True), "deadline="),
    "concurrency 0": (call(Buffered, 0), "concurrency="),
    "concurrency 1.5": (call(Buffered, 1.5), "concurrency="),
    "concurrency text": (call(Buffered, "10"), "concurrency="),
    "buffer True": (call(Buffered, buffer=True), "buffer="),
    "buffer nan": (call(Buffered, buffer=NAN), "buffer="),
    "adding": (call(Buffered, adding="delta"), "adding="),
    "speed number": (call(Devices, 100), "speed="),
    "down class": (call(Devices, down=np.ndarray), "down="),
    "up text": (call(Devices, up="fast"), "up="),
    "availability number": (call(Devices, availability=0.5), "availability="),
    "speed of one": (call(Devices, speed=lambda rng: 1.0), "speed="),
    "speed of the wrong shape": (
        made(devices=Devices(speed=lambda rng, clients: np.ones(3))),
        "speed",
    ),
    "speed of text": (
        made(devices=Devices(speed=lambda rng, clients: np.array(["fast"] * clients))),
        "speed",
    ),
    "availability of nan": (
        made(devices=Devices(availability=lambda rng, clients: np.full(clients, NAN))),
        "availability",
    ),
    "constant text": (call(constant, "x"), "value="),
    "constant nan": (call(constant, NAN), "value="),
    "lognormal 0": (call(lognormal, 0), "median="),
    "lognormal spread": (call(lognormal, 1.0, -1), "spread="),
    "uniform the wrong way round": (call(uniform, 5, 1), "high="),
    "uniform text": (call(uniform, "1", 5), "low="),
    "lanes -1": (call(Local, -1), "lanes="),
    "lanes 1.5": (call(Local, 1.5), "lanes="),
    "lanes text": (call(Local, "many"), "lanes="),
    "lanes True": (call(Local, True), "lanes="),
    "compiled number": (call(Local, compiled=1), "compiled="),
    "compiled text": (call(Local, compiled="yes"), "compiled="),
    "processes 0": (call(Local, processes=0), "processes="),
    "processes nan": (call(Local, processes=NAN), "processes="),
    "device unknown": (call(Local, device="gpu"), "device="),
    "device number": (call(Local, device=0), "device="),
    "device not there": (lambda: simulation(engine=Local(device="cuda:99")).run(1), "device="),
    "workers 0": (call(Ray, 0), "workers="),
    "workers 1.5": (call(Ray, 1.5), "workers="),
    "address number": (call(Ray, address=6379), "address="),
    "address empty": (call(Ray, address=""), "address="),
    "cpus -1": (call(Ray, cpus=-1), "cpus="),
    "gpus nan": (call(Ray, gpus=NAN), "gpus="),
    "ray lanes": (call(Ray, lanes="all"), "lanes="),
    "columns list": (call(Population, [np.zeros(3)], [0, 3]), "columns"),
    "columns none": (call(Population, {}, [0]), "column"),
    "columns of one number": (call(Population, {"x": 3}, [0, 1]), "'x'"),
    "columns of ragged lists": (call(Population, {"x": [[1], [1, 2]]}, [0, 2]), "'x'"),
    "offsets float": (call(Population, {"x": np.zeros(2)}, [0.0, 2.0]), "offsets"),
    "offsets too short": (call(Population, {"x": np.zeros(2)}, [0, 1]), "offsets"),
    "names number": (call(Population, {"x": np.zeros(2)}, [0, 2], names=3), "names"),
    "names too many": (call(Population, {"x": np.zeros(2)}, [0, 2], names=["a", "b"]), "names"),
    "ids number": (call(Population.by, {"x": np.zeros(2)}, 3), "id"),
    "pooled list": (call(Population.pooled, [1, 2]), "columns"),
    "parts number": (call(Population.of, {"x": np.zeros(2)}, 3), "parts"),
    "parts of texts": (call(Population.of, {"x": np.zeros(2)}, ["a"]), "part"),
    "partition list": (call(people().partition, [[0], [1]]), "parts="),
    "open nothing": (call(Population.open, "nowhere"), "nowhere"),
    "open number": (call(Population.open, 3), "folder="),
    "read nothing": (call(Population.from_parquet, "nowhere.parquet", client="a"), "nowhere"),
    "split text": (call(people().split, "half"), "share"),
    "split nan": (call(people().split, NAN), "share"),
    "split seed": (call(people().split, 0.5, seed=1.5), "seed="),
    "select text": (call(people().select, "a"), "clients"),
    "client text": (call(people().client, "a"), "client"),
    "checkpoint number": (call(Checkpoint, 3), "folder="),
    "checkpoint a file": (call(Checkpoint, __file__), "folder="),
    "checkpoint every 0": (call(Checkpoint, "x", 0), "every="),
    "checkpoint every -1": (call(Checkpoint, "x", -1), "every="),
    "checkpoint every 1.5": (call(Checkpoint, "x", 1.5), "every="),
    "checkpoint every True": (call(Checkpoint, "x", True), "every="),
    "stop metric": (call(EarlyStop, 3, patience=1), "metric="),
    "stop patience 0": (call(EarlyStop, patience=0), "patience="),
    "stop patience 1.5": (call(EarlyStop, patience=1.5), "patience="),
    "stop target text": (call(EarlyStop, target="0.9"), "target="),
    "stop target nan": (call(EarlyStop, target=NAN), "target="),
    "stop best": (call(EarlyStop, patience=1, best="max"), "best="),
    "best metric": (call(BestModel, None), "metric="),
    "best best": (call(BestModel, best="lowest"), "best="),
    "weighting text": (call(hubless.FedAvg, "equally"), "weighting="),
    "weighting class": (call(hubless.FedAvg, Equally), "weighting="),
    "weighting of a bound": (call(hubless.NormBound, weighting=Equally), "weighting="),
    "weighting of a krum": (call(hubless.MultiKrum, weighting="x"), "weighting="),
    "weighting of a median": (call(hubless.GeometricMedian, weighting="x"), "weighting="),
    "reducer class": (call(Strategy, Equally(), Mean, Replace()), "reducer="),
    "optimizer none": (call(Strategy, Equally(), Mean(), None), "optimizer="),
    "capped text": (call(Capped, "10"), "most="),
    "capped nan": (call(Capped, NAN), "most="),
    "avgm lr": (call(hubless.FedAvgM, lr=0), "lr="),
    "avgm lr -1": (call(hubless.FedAvgM, lr=-1), "lr="),
    "avgm momentum 1": (call(hubless.FedAvgM, momentum=1), "momentum="),
    "avgm momentum": (call(hubless.FedAvgM, momentum=1.5), "momentum="),
    "fedadam lr nan": (call(hubless.FedAdam, NAN), "lr="),
    "fedadam beta1": (call(hubless.FedAdam, beta1=1.0), "beta1="),
    "fedadam lr -1": (call(hubless.FedAdam, lr=-1), "lr="),
    "fedadam tau -1": (call(hubless.FedAdam, tau=-1), "tau="),
    "fedadam tau": (call(hubless.FedAdam, tau=0), "tau="),
    "fedyogi lr text": (call(hubless.FedYogi, "0.1"), "lr="),
    "fedyogi lr -1": (call(hubless.FedYogi, lr=-1), "lr="),
    "fedyogi tau -1": (call(hubless.FedYogi, tau=-1), "tau="),
    "fedyogi beta2": (call(hubless.FedYogi, beta2=-0.1), "beta2="),
    "fedadagrad lr": (call(hubless.FedAdagrad, lr=-1), "lr="),
    "fedadagrad tau -1": (call(hubless.FedAdagrad, tau=-1), "tau="),
    "fedadagrad tau": (call(hubless.FedAdagrad, tau=INF), "tau="),
    "fedasync share": (call(hubless.FedAsync, 1.5), "share="),
    "fedasync share text": (call(hubless.FedAsync, "half"), "share="),
    "fedasync decay": (call(hubless.FedAsync, decay="exponential"), "decay="),
    "fedasync a": (call(hubless.FedAsync, a=NAN), "a="),
    "fedbuff b": (call(hubless.FedBuff, b=-1), "b="),
    "fedbuff decay": (call(hubless.FedBuff, decay=0.5), "decay="),
    "trimmed cut 0.5": (call(hubless.FedTrimmedMean, 0.5), "cut="),
    "trimmed cut text": (call(hubless.FedTrimmedMean, "0.1"), "cut="),
    "krum hostile": (call(hubless.Krum, 0.5), "hostile="),
    "krum hostile text": (call(hubless.Krum, "0.1"), "hostile="),
    "multikrum keep 0": (call(hubless.MultiKrum, keep=0), "keep="),
    "multikrum keep -1": (call(hubless.MultiKrum, keep=-1), "keep="),
    "multikrum keep 1.5": (call(hubless.MultiKrum, keep=1.5), "keep="),
    "bulyan hostile": (call(hubless.Bulyan, NAN), "hostile="),
    "bulyan hostile True": (call(hubless.Bulyan, True), "hostile="),
    "clipping radius": (call(hubless.CentredClipping, 0), "radius="),
    "clipping radius text": (call(hubless.CentredClipping, "1"), "radius="),
    "clipping iterations": (call(hubless.CentredClipping, iterations=1.5), "iterations="),
    "median iterations": (call(hubless.GeometricMedian, 0), "iterations="),
    "median smoothing": (call(hubless.GeometricMedian, smoothing=NAN), "smoothing="),
    "bound -1": (call(hubless.NormBound, -1), "bound="),
    "bound inf": (call(hubless.NormBound, INF), "bound="),
    "active alpha1": (call(Active, "0.5"), "alpha1="),
    "active alpha2": (call(Active, alpha2=NAN), "alpha2="),
    "active unseen": (call(Active, unseen="best"), "unseen="),
    "active unseen nan": (call(Active, unseen=NAN), "unseen="),
    "activity f": (call(Activity, "square"), "f="),
    "activity f number": (call(Activity, 2), "f="),
    "activity design": (call(Activity, design="both"), "design="),
    "heavy share": (call(Heavy, "0.5"), "share="),
    "heavy share 0": (call(Heavy, 0), "share="),
    "oort preferred": (call(Oort, "fast"), "preferred="),
    "oort clip": (call(Oort, clip=2), "clip="),
    "optimal least": (call(OptimalSampling, "0"), "least="),
    "choice d": (call(PowerOfChoice, 1.5), "d="),
    "refreshed rounds": (call(Refreshed, rounds=1.5), "rounds="),
    "refreshed class": (call(Refreshed, Uniform), "selector="),
    "reachable text": (call(Reachable, "uniform"), "selector="),
    "reachable floor": (call(Reachable, floor="0"), "floor="),
    "at most class": (call(AtMost, Uniform), "selector="),
    "fixed number": (call(Fixed, 3), "clients="),
    "fixed floats": (call(Fixed, [1.5]), "clients="),
    "fixed text": (call(Fixed, "12"), "clients="),
    "weighted text": (call(Weighted, "heavy"), "weights="),
    "weighted table": (call(Weighted, [[1.0, 2.0]]), "weights="),
    "weighted nan": (call(Weighted, [1.0, NAN]), "weight"),
    "laplace epsilon text": (call(Laplace, "1", 4.0), "epsilon="),
    "laplace epsilon True": (call(Laplace, True, 4.0), "epsilon="),
    "laplace epsilon 0": (call(Laplace, 0, 4.0), "epsilon="),
    "laplace clip None": (call(Laplace, 1.0, None), "clip="),
    "laplace clip inf": (call(Laplace, 1.0, INF), "clip="),
    "gaussian sigma text": (call(Gaussian, "1", 4.0), "sigma="),
    "gaussian sigma -1": (call(Gaussian, -1.0, 4.0), "sigma="),
    "gaussian clip nan": (call(Gaussian, 1.0, NAN), "clip="),
    "gaussian promising a text": (call(Gaussian.promising, "1", 1e-6, 4.0), "epsilon="),
    "gaussian promising surely": (call(Gaussian.promising, 1.0, 0, 4.0), "delta="),
    "count epsilon text": (call(Count, "2"), "epsilon="),
    "count epsilon True": (call(Count, True), "epsilon="),
    "sparse of a class": (call(SparseVector, Count, 1.0, 40.0), "fresh="),
    "sparse of a number": (call(SparseVector, 1.0, 1.0, 40.0), "fresh="),
    "sparse of itself": (
        lambda: SparseVector(cast(Any, SparseVector(Count(1.0), 1.0, 40.0)), 1.0, 40.0),
        "fresh=",
    ),
    "sparse epsilon text": (call(SparseVector, Count(1.0), "1", 40.0), "epsilon="),
    "sparse threshold 0": (call(SparseVector, Count(1.0), 1.0, 0), "threshold="),
    "ledger clients text": (call(Ledger, "3"), "clients="),
    "ledger clients -1": (call(Ledger, -1), "clients="),
    "ledger clients 2.0": (call(Ledger, 2.0), "clients="),
    "ledger budget text": (call(Ledger, 3, budget="1"), "budget="),
    "ledger budget 0": (call(Ledger, 3, budget=0), "budget="),
    "ledger budget True": (call(Ledger, 3, budget=True), "budget="),
    "ledger budget nan": (call(Ledger, 3, budget=NAN), "budget="),
    "ledger delta text": (call(Ledger, 3, delta="0"), "delta="),
    "ledger delta 1": (call(Ledger, 3, delta=1), "delta="),
    "ledger delta None": (call(Ledger, 3, delta=None), "delta="),
    "spent at a text": (call(Ledger(3).spent, "0"), "delta="),
    "spent at 2": (call(Ledger(3).spent, 2), "delta="),
    "cost of another kind": (call(Cost, "exponential", 1.0), "kind="),
    "cost of a text": (call(Cost, "laplace", "1"), "size="),
    "cost of True": (call(Cost, "pure", True), "size="),
    "composed at a text": (call(composed, ((Cost("pure", 1.0), 1),), "0"), "delta="),
    "composed at 2": (call(composed, ((Cost("pure", 1.0), 1),), 2.0), "delta="),
    "composed -1 times": (call(composed, ((Cost("pure", 1.0), -1),), 0.0), "times="),
    "sigma for a text": (call(sigma_for, "1", 1e-6), "epsilon="),
    "sigma for nan": (call(sigma_for, 1.0, NAN), "delta="),
}


@pytest.fixture
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(LocalExecutor, "__init__", start)
    monkeypatch.setattr(RayEngine, "__init__", start)
    monkeypatch.setattr(os, "fork", start)


@pytest.mark.parametrize("wrong", CALLS)
@pytest.mark.usefixtures("nothing_starts")
def test_a_wrong_call_is_an_error_of_one_paragraph_and_nothing_is_done(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made, named = CALLS[wrong]
    with pytest.raises(hubless.HublessError) as raised:
        made()
    said = str(raised.value)
    assert type(raised.value).__module__ == errors.__name__
    assert 20 < len(said) < 400
    assert "\n" not in said
    assert named in said
    assert list(tmp_path.iterdir()) == []


def test_numbers_of_numpy_and_what_comes_one_after_the_other_are_fine() -> None:
    optimizer = SGD(cast(float, np.float32(0.1)), momentum=cast(float, np.float64(0.5)))
    recipe = Recipe(optimizer, epochs=cast(int, np.int32(1)), batch=cast(int, np.int64(4)))
    stops = (EarlyStop("train_loss", patience=each) for each in (1, 2))
    ran = simulation(recipe=recipe, cohort=np.float32(0.3), seed=np.int64(3), callbacks=stops)
    ran.run(np.int64(1))
    assert ran.round == 1
    assert ran.cohort == 3
    assert len(ran.callbacks) == 2


def test_a_name_that_histories_have_is_no_name_for_a_metric() -> None:
    ran = simulation(
        value=LossOverRoot(),
        private=Laplace(1.0, clip=1.0),
        task=Task(mlp(), metrics={"accuracy": accuracy}),
        test=people(),
    )
    ran.run(1)
    assert set(ran.rows[0]) - {"accuracy"} == set(TAKEN)
