"""`DistributedOptimizer` and the broadcasts: what ranks train is what one process trains on all batches."""

from __future__ import annotations

from typing import Any

import pytest

from switchagg.control.embedded import EmbeddedController
from switchagg.errors import MismatchError, UsageError
from tests.seeds import seed_of_this_run
from tests.worker_lib.harness import together
from worker_lib import Session

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'switchagg[torch]')")
RANKS = 3


@pytest.fixture(scope="module")
def host() -> Any:
    with EmbeddedController() as controller:
        yield controller


def _model(seed: int) -> Any:
    torch.manual_seed(seed)
    model = torch.nn.ModuleDict(
        {"a": torch.nn.Linear(20, 30), "b": torch.nn.Linear(30, 4), "unused": torch.nn.Linear(2, 2)}
    )
    model["only_at_one"] = torch.nn.Linear(20, 4)
    return model.double()


def _loss(model: Any, x: Any, *, extra: bool) -> Any:
    y = model["b"](torch.tanh(model["a"](x)))
    return ((y + model["only_at_one"](x)) if extra else y).square().mean()


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("bucket_bytes", [64, 4 << 20])
def test_trains_as_one_process_does(
    host: EmbeddedController, monkeypatch: pytest.MonkeyPatch, passes: int, bucket_bytes: int
) -> None:
    from worker_lib.torch import optimizer as switch

    monkeypatch.setattr(switch, "BUCKET_BYTES", bucket_bytes)
    seed = seed_of_this_run()
    steps = 4
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(steps, passes, RANKS, 8, 20, generator=generator, dtype=torch.float64)
    models = [_model(seed + rank) for rank in range(RANKS)]  # threads share torch's generator

    alone = _model(seed)
    sgd = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    for step in range(steps):
        sgd.zero_grad()
        for turn in range(passes):
            for rank in range(RANKS):
                (_loss(alone, data[step, turn, rank], extra=rank == 1) / RANKS).backward()
        sgd.step()

    def train(session: Session) -> Any:
        model = models[session.rank]
        switch.broadcast_parameters(session, model.state_dict())
        own = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        optimizer = switch.DistributedOptimizer(own, session, backward_passes_per_step=passes)
        assert optimizer is own
        for step in range(steps):
            optimizer.zero_grad()
            for turn in range(passes):
                _loss(model, data[step, turn, session.rank], extra=session.rank == 1).backward()
            if step % 2:
                optimizer.synchronize()  # as before clipping
                optimizer.synchronize()
            assert model["unused"].weight.grad is None
            optimizer.step()
        return model.state_dict()

    states = together(host.url, RANKS, train)
    for name, wanted in alone.state_dict().items():
        for state in states:
            assert torch.equal(state[name], states[0][name]), name
        assert torch.allclose(states[0][name], wanted, rtol=1e-11, atol=1e-13), name


def test_broadcasts(host: EmbeddedController) -> None:
    from worker_lib.torch import optimizer as switch

    def call(session: Session) -> None:
        rank = session.rank
        square = torch.full((3, 2), float(rank))
        state = {
            "half": torch.full((5,), rank + 0.5, dtype=torch.bfloat16),
            "turned": square.t(),
            "count": torch.tensor(rank),
            "none": torch.empty(0),
        }
        switch.broadcast_parameters(session, state, root=1)
        assert state["half"].tolist() == [1.5] * 5
        assert square.tolist() == [[1.0, 1.0]] * 3
        assert state["count"].item() == 1
        weight = torch.nn.Parameter(torch.ones(2))
        adam = torch.optim.Adam([weight], lr=0.1 * (rank + 1))
        weight.grad = torch.full((2,), float(rank + 1))
        adam.step()
        switch.broadcast_optimizer_state(session, adam, root=1)
        assert adam.param_groups[0]["lr"] == 0.2
        assert torch.allclose(adam.state[weight]["exp_avg"], torch.full((2,), 0.2))

    together(host.url, RANKS, call)


def test_what_cannot_be(host: EmbeddedController) -> None:
    from worker_lib.torch import optimizer as switch

    def call(session: Session) -> None:
        weight = torch.nn.Parameter(torch.ones(2))
        sgd = torch.optim.SGD([weight], lr=0.1)
        for named, problem in (
            ({"op": "max"}, "op is 'max'; accepted: 'avg' and 'sum'"),
            ({"backward_passes_per_step": 0}, "backward_passes_per_step is 0"),
            ({"memory": 1}, "memory is not accepted; accepted: bits"),
        ):
            with pytest.raises(UsageError, match=problem):
                switch.DistributedOptimizer(sgd, session, **named)
        with pytest.raises(UsageError, match="x is a int; accepted: tensors"):
            switch.broadcast_parameters(session, {"x": 3})
        other = torch.nn.Parameter(torch.ones(2 + session.rank))
        with pytest.raises(MismatchError, match="other keys, shapes or types"):
            switch.DistributedOptimizer(torch.optim.SGD([other], lr=0.1), session)
        switch.DistributedOptimizer(sgd, session)
        with pytest.raises(UsageError, match="distributed already"):
            switch.DistributedOptimizer(sgd, session)
        with pytest.raises(UsageError, match="step\\(\\) has a closure"):
            sgd.step(lambda: 0.0)
        weight.sum().backward()
        with pytest.raises(UsageError, match="a gradient came after 1 backward passes"):
            weight.sum().backward()
        sgd.synchronize()
        sgd.step()
        assert torch.allclose(weight.detach(), torch.full((2,), 1 - 0.1 * 1.0), atol=0.11)

    together(host.url, 2, call)
