"""An LSTM's recurrence with its own way back, against torch's own LSTM.

The kernels run here too, slowly, where Triton's interpreter does, which wants an older numpy:

    pip install --no-deps --target /tmp/triton triton==3.6.0 "numpy<2.3"
    TRITON_INTERPRET=1 PYTHONPATH=/tmp/triton pytest -W ignore tests/train/layers/test_recurrent.py
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hubless.train.layers import recurrent, vectorise
from hubless.train.layers.vectorise import vectorised

CPU = torch.device("cpu")

Results = dict[str, Tensor]

LSTMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "two layers both ways": {"num_layers": 2, "bidirectional": True},
    "no bias": {"bias": False, "bidirectional": True},
}
every_lstm = pytest.mark.parametrize("kind", LSTMS)

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None,
    reason="needs Triton's interpreter",
)


@pytest.fixture(autouse=True, params=["torch", pytest.param("triton", marks=interpreted)])
def _at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, as on a GPU."""
    monkeypatch.setattr(vectorise, "fits", lambda *_: True)
    if request.param == "triton":
        monkeypatch.setattr(recurrent, "_has_kernels", lambda _: True)


def _twins(kind: str, hidden: int) -> tuple[nn.LSTM, nn.Module]:
    torch.manual_seed(0)
    lstm = nn.LSTM(3, hidden, **LSTMS[kind])
    return lstm, vectorised(lstm, CPU)


def _inputs(lstm: nn.LSTM, steps: int, examples: int, *lanes: int) -> Results:
    shape = (examples, steps, 3) if lstm.batch_first else (steps, examples, 3)
    state = (lstm.num_layers * (1 + lstm.bidirectional), examples, lstm.hidden_size)
    shapes = {"x": shape, "h": state, "c": state}
    return {name: torch.randn(*lanes, *shape) for name, shape in shapes.items()}


def _score(module: nn.Module, params: Results, given: Results) -> tuple[Tensor, Results]:
    """Something that depends on all that comes out, differently at every place."""
    state = (given["h"], given["c"]) if "h" in given else None
    outputs, (h, c) = functional_call(module, params, (given["x"], state))
    found = {"outputs": outputs, "h_n": h, "c_n": c}
    score = sum((v * torch.arange(v.numel()).view(v.shape).sin()).sum() for v in found.values())
    return torch.as_tensor(score), found


def _all(module: nn.Module, params: Results, given: Results) -> Results:
    """What comes out, and the gradients of all that goes in."""
    gradients, found = grad(lambda both: _score(module, both[0], both[1]), has_aux=True)(
        (params, given)
    )
    return {**found, **gradients[0], **gradients[1]}


def _params(module: nn.Module) -> Results:
    return {name: param.detach() for name, param in module.named_parameters()}


def _check(ours: Results, theirs: Results) -> None:
    assert ours.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], atol=1e-5, rtol=1e-5, msg=name)


@every_lstm
@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("examples", [1, 5, 33])
def test_the_recurrence_is_an_lstms(kind: str, steps: int, examples: int) -> None:
    lstm, twin = _twins(kind, 16)
    given = _inputs(lstm, steps, examples)
    _check(_all(twin, _params(lstm), given), _all(lstm, _params(lstm), given))


@pytest.mark.parametrize("hidden", [32, 64])
def test_the_recurrence_is_an_lstms_at_every_size(hidden: int) -> None:
    lstm, twin = _twins("two layers both ways", hidden)
    given = _inputs(lstm, 3, 16)
    _check(_all(twin, _params(lstm), given), _all(lstm, _params(lstm), given))


@every_lstm
@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("shared", ["nothing", "state", "inputs", "params"])
def test_lanes_are_as_each_alone(kind: str, lanes: int, shared: str) -> None:
    """Whatever they share."""
    lstm, twin = _twins(kind, 16)
    stacked = {
        n: torch.stack([p * (1 + i) for i in range(lanes)]) for n, p in _params(lstm).items()
    }
    params = _params(lstm) if shared == "params" else stacked
    given = _inputs(lstm, 4, 5, lanes)
    own = {"nothing": "xhc", "state": "x", "inputs": "hc", "params": "xhc"}[shared]
    given = {name: value if name in own else value[0] for name, value in given.items()}
    in_dims = (None if shared == "params" else 0, {n: 0 if n in own else None for n in given})
    found = vmap(lambda p, g: _all(twin, p, g), in_dims=in_dims)(params, given)
    for i in range(lanes):
        alone = _all(
            lstm,
            params if shared == "params" else {n: p[i] for n, p in params.items()},
            {n: value[i] if n in own else value for n, value in given.items()},
        )
        _check({name: value[i] for name, value in found.items()}, alone)


def test_gradients_of_lanes_are_as_lanes_of_gradients() -> None:
    lstm, twin = _twins("two layers both ways", 16)
    stacked = {n: torch.stack([p, 2 * p]) for n, p in _params(lstm).items()}
    given = _inputs(lstm, 4, 5, 2)
    outside = grad(lambda p: vmap(lambda p, g: _score(twin, p, g)[0])(p, given).sum())(stacked)
    inside = vmap(grad(lambda p, g: _score(twin, p, g)[0]))(stacked, given)
    _check(outside, inside)


@pytest.mark.parametrize("used", ["outputs", "h_n", "c_n"])
def test_what_is_not_used_has_no_part_in_gradients(used: str) -> None:
    lstm, twin = _twins("two layers both ways", 16)
    given = _inputs(lstm, 4, 5)

    ours, theirs = (
        grad(lambda p, module=module: _score(module, p, given)[1][used].sum())(_params(lstm))
        for module in (twin, lstm)
    )
    _check(ours, theirs)


def test_without_a_batch_or_a_state() -> None:
    lstm, twin = _twins("two layers both ways", 16)
    given = {"x": torch.randn(4, 3)}
    _check(_all(twin, _params(lstm), given), _all(lstm, _params(lstm), given))


def test_products_in_half_precision_leave_results_in_half_precision() -> None:
    """In float16: of bfloat16 the interpreter multiplies the bits."""
    lstm, twin = _twins("two layers both ways", 16)
    given = _inputs(lstm, 4, 5)

    def score(both: tuple[Results, Results]) -> tuple[Tensor, Results]:
        with torch.autocast("cpu", torch.float16):
            return _score(twin, *both)

    params, inputs = ({n: v[None] for n, v in some.items()} for some in (_params(lstm), given))
    gradients, found = vmap(grad(score, has_aux=True))((params, inputs))
    assert found["outputs"].dtype == torch.float16
    theirs = _all(lstm, _params(lstm), given)
    for name, ours in {**found, **gradients[0], **gradients[1]}.items():
        assert (ours[0] - theirs[name]).norm() < 0.01 * theirs[name].norm(), name


def test_it_runs_at_once_where_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1)
    monkeypatch.setattr(recurrent, "_has_kernels", lambda _: True)
    assert recurrent.fits(x, 32)
    assert not recurrent.fits(x, 24)
    assert not recurrent.fits(x.double(), 32)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not recurrent.fits(x, 32)
