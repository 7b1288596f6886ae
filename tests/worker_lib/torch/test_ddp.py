"""DDP over the backend, and its communication hooks: the same parameters everywhere, and gloo's training."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import worker_lib
from tests.worker_lib.torch.models import MODELS, loss_of, train
from tests.worker_lib.torch.worlds import run
from worker_lib.torch import State, allreduce_hook, hooks, work

STEPS = 12
DENSE = ["classifier", "transformer", "recommender"]


def wrapped(name: str, group: Any = None, seed: int = 3) -> Any:
    torch.manual_seed(seed)
    # Small buckets: several reductions are in flight during a backward pass.
    return DistributedDataParallel(MODELS[name](), process_group=group, bucket_cap_mb=0.01)


def _trained(names: list[str]) -> None:
    gloo = dist.new_group(backend="gloo")
    for name in names:
        ours = train(name, wrapped(name), STEPS, check=gloo)
        theirs = train(name, wrapped(name, gloo), STEPS)
        assert ours == pytest.approx(theirs, rel=1e-3), name


def test_three_models_train_as_with_gloo() -> None:
    run(3, _trained, DENSE)


def _hooked(options: dict[str, Any], tolerance: float) -> dict[str, Any]:
    """On gloo, gradients through the switch."""
    for name in DENSE:
        model = wrapped(name)
        with State(model, **options) as state:
            model.register_comm_hook(state, allreduce_hook)
            ours = train(name, model, STEPS, check=dist.group.WORLD)
            assert state.session.stats()["collectives"] >= STEPS
            remembered = state.state_dict()["residuals"]
            assert bool(remembered) == state.error_feedback
            # Sums with memories, or of chosen blocks, are not kept.
            assert bool(state._sums) != (state.error_feedback or state.density < 1)
        theirs = train(name, wrapped(name), STEPS)
        assert ours == pytest.approx(theirs, rel=tolerance), name
    return state.session.stats()


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({}, 1e-3),
        ({"bits": 16}, 0.05),
        ({"bits": 8}, 0.3),
        ({"bits": 16, "error_feedback": False}, 0.05),
        ({"bits": 32, "density": 0.3, "block_size": 32}, 0.5),
        ({"bits": "auto", "min_bits": 8, "blocks": "sparse"}, 0.3),
    ],
)
def test_a_hook_beside_gloo(options: dict[str, Any], tolerance: float) -> None:
    run(2, _hooked, options, tolerance, backend="gloo")


def _shared() -> int:
    model = wrapped("classifier")
    state = State(model, bits=16)
    model.register_comm_hook(state, allreduce_hook)
    train("classifier", model, 3, check=dist.new_group(backend="gloo"))
    assert state.session is dist.group.WORLD.session
    state.close()  # leaves the process group's session alone
    dist.barrier()
    return len(state.state_dict()["residuals"])


def test_a_hook_on_our_own_backend_shares_its_session() -> None:
    assert run(2, _shared) == [6, 6]


def _last_bucket(seconds: float | None) -> tuple[list[float], list[bool], bool]:
    """Three steps of one bucket each; without `seconds`, rank 1's hook begins when rank 0's has returned.

    Returns the last gradients, whether each future was complete when its hook returned, and whether a thread
    had to wait for any.
    """
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    model = DistributedDataParallel(torch.nn.Linear(1000, 1, bias=False))
    complete = []
    with State(model) as state:

        def hook(state: State, bucket: Any) -> Any:
            assert bucket.is_last()
            if seconds is None and rank == 1:
                store.wait([f"returned{len(complete)}"])
            future = allreduce_hook(state, bucket)
            complete.append(future.done())
            if rank == 0:
                store.set(f"returned{len(complete) - 1}", "")
            return future

        # DDP looks at annotations, which must not be strings.
        hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        if seconds is not None:
            hooks._DRIVE_SECONDS = seconds  # type: ignore[misc]
        model.register_comm_hook(state, hook)
        for _ in range(3):
            model.zero_grad()
            model(torch.full((1000,), 1.0 + rank)).backward()
        return model.module.weight.grad[0].unique().tolist(), complete, bool(state._through.futures._threads)


def test_whoever_hands_over_the_last_bucket_runs_the_exchange() -> None:
    for gradients, complete, waited in run(2, _last_bucket, 60.0, backend="gloo"):
        assert gradients == [1.5]
        assert complete == [True] * 3
        assert not waited


def _several_buckets() -> list[list[bool]]:
    """Two steps while the thread that completes futures is busy: what is done when the last hook returns."""
    layers = [torch.nn.Linear(100, 100, bias=False) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    hooks._DRIVE_SECONDS = 60.0  # type: ignore[misc]
    free = threading.Event()
    futures: list[Any] = []
    complete: list[list[bool]] = []

    def busy() -> None:
        free.wait(30)

    with State(model) as state:

        def hook(state: State, bucket: Any) -> Any:
            if not futures:
                free.clear()
                state._through.futures.put(busy)
            futures.append(allreduce_hook(state, bucket))
            future = futures[-1]
            if bucket.is_last():
                complete.append([each.done() for each in futures])
                futures.clear()
                free.set()
            return future

        hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        model.register_comm_hook(state, hook)
        for _ in range(2):
            model(torch.ones(100)).sum().backward()
    return complete


def test_whoever_hands_over_the_last_bucket_completes_the_others() -> None:
    for complete in run(2, _several_buckets, backend="gloo"):
        assert [each for step in complete for each in step] == [True] * sum(map(len, complete))
        assert len(complete[1]) > 1


def _lazy_buckets(waits: bool) -> tuple[list[float], bool, bool]:
    """Two steps of three small buckets, of which the hook waits for the first, or for none.

    Returns a gradient, whether a thread completed a bucket, and whether the engine has started one.
    """
    layers = [torch.nn.Linear(100, 100, bias=False) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    hooks._DRIVE_SECONDS = 60.0  # type: ignore[misc]
    if not waits:
        work._LATER = 600.0  # type: ignore[misc]
    torch.ones(1, requires_grad=True).backward()  # type: ignore[no-untyped-call]  # starts autograd's own threads
    with State(model) as state:
        before = len(os.listdir("/proc/self/task"))

        def hook(state: State, bucket: Any) -> Any:
            future = allreduce_hook(state, bucket)
            if waits and bucket.index() == 0:
                future.wait()
            return future

        hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        model.register_comm_hook(state, hook)
        for _ in range(2):
            model.zero_grad()
            model(torch.full((100,), 1.0 + dist.get_rank())).sum().backward()
        threads = len(os.listdir("/proc/self/task")) - before
        gradient = model.module[0].weight.grad[:, 0].clone()
        model.zero_grad()
        with model.no_sync():
            total = sum(model(torch.full((100,), 1.0 + rank)).sum() for rank in range(2))
            total.backward()
        same = torch.allclose(gradient, model.module[0].weight.grad[:, 0] / 2, rtol=1e-3)
        return [float(same)], bool(state._through.futures._threads), threads > 1


def test_small_buckets_go_out_with_the_last_and_wake_no_thread() -> None:
    assert run(2, _lazy_buckets, False, backend="gloo") == [([1.0], False, False)] * 2


def test_a_small_bucket_that_a_hook_waits_for_goes_out_alone() -> None:
    assert [found[:2] for found in run(2, _lazy_buckets, True, backend="gloo")] == [([1.0], True)] * 2


def _after_a_failed_pass() -> None:
    """A pass that ends after its first bucket, then one with a process group of another size."""
    layers = [torch.nn.Linear(100, 100, bias=False) for _ in range(3)]
    net = torch.nn.Sequential(*layers)
    fails = False

    def hook(state: State, bucket: Any) -> Any:
        if fails and bucket.index() == 1:
            raise worker_lib.WorkerLostError("rank 1 is lost", (1,))
        return allreduce_hook(state, bucket)

    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    with State(DistributedDataParallel(net)) as state:

        def wrap() -> Any:
            model = DistributedDataParallel(net, bucket_cap_mb=0.01)
            model.register_comm_hook(state, hook)
            return model

        model = wrap()
        model(torch.ones(100)).sum().backward()  # DDP deals out the buckets anew after it
        fails = True
        with pytest.raises(worker_lib.WorkerLostError):
            model(torch.ones(100)).sum().backward()
        fails = False
        model = wrap()
        group, state._group = state._group, SimpleNamespace(size=lambda: 3)
        with pytest.raises(worker_lib.UsageError, match="make a new one when members change"):
            model(torch.ones(100)).sum().backward()
        state._group = group
        model = wrap()
        net.zero_grad()
        model(torch.full((100,), 1.0 + dist.get_rank())).sum().backward()
        mean = layers[1](layers[0](torch.full((100,), 1.5)))
        assert torch.allclose(layers[2].weight.grad, mean, rtol=1e-3)


def test_members_that_change_after_a_failed_pass_are_noticed() -> None:
    run(2, _after_a_failed_pass, backend="gloo")


def test_a_last_bucket_does_not_hold_up_its_rank_until_the_others_come() -> None:
    first, second = run(2, _last_bucket, None, backend="gloo")
    assert first == ([1.5], [False] * 3, True)
    assert second[0] == [1.5]


def _feedback() -> list[float]:
    """Sums of many small gradients: with error feedback nothing is lost, however coarse the lanes."""
    biases = []
    for feedback in (True, False):
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(1024, 1, bias=False))
        state = State(model, bits=8, error_feedback=feedback)
        model.register_comm_hook(state, allreduce_hook)
        gradient = torch.linspace(-1, 1, 1024) ** 3
        total = torch.zeros(1024)
        for _ in range(50):
            model.zero_grad()
            (model(gradient).sum()).backward()
            total += model.module.weight.grad[0]
        biases.append((total - 50 * gradient).abs().max().item())
        state.close()
    return biases


def test_error_feedback_keeps_what_lanes_leave_out() -> None:
    for kept, lost in run(2, _feedback, backend="gloo"):
        assert kept < 0.05  # no more than the residuals of the last step
        assert lost > 2 * kept


def _resumed() -> None:
    def make() -> tuple[Any, State]:
        model = wrapped("transformer")
        state = State(model, bits=8)
        model.register_comm_hook(state, allreduce_hook)
        return model, state

    model, state = make()
    train("transformer", model, 2)
    saved = state.state_dict()
    assert all(left.abs().sum() > 0 for left in saved["residuals"].values())
    again, fresh = make()
    fresh.load_state_dict(saved)
    for name, left in fresh.state_dict()["residuals"].items():
        assert torch.equal(left, saved["residuals"][name])
    train("transformer", again, 1)
    for wrong, said in (
        ({}, "no 'residuals'"),
        ({"residuals": {"other": torch.zeros(3)}}, "no such parameter"),
        ({"residuals": {"head.bias": torch.zeros(3)}}, "here: \\(64,\\)"),
    ):
        with pytest.raises(worker_lib.UsageError, match=said):
            fresh.load_state_dict(wrong)
    with pytest.raises(worker_lib.UsageError, match="error_feedback is off"):
        State(model, bits=8, error_feedback=False).load_state_dict(saved)
    for options, said in (
        ({"bits": 12}, "bits is 12"),
        ({"bits": 16, "min_bits": 8}, "it goes with bits='auto'"),
        ({"bits": "auto", "min_bits": 5}, "min_bits is 5"),
        ({"density": 0}, "density is 0"),
        ({"density": 0.5, "blocks": "dense"}, "blocks must be 'auto'"),
    ):
        with pytest.raises(worker_lib.UsageError, match=said):
            State(model, **options)
    with pytest.raises(worker_lib.UsageError, match="pass the model"):
        State(bits=8, error_feedback=True)


def test_state_dict_and_wrong_states() -> None:
    run(2, _resumed)


def _scaled(dtype: torch.dtype, hooked: bool) -> None:
    """An Inf on one rank only: GradScaler skips the step on all, and goes on together."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1)).to(dtype)
    )
    if hooked:
        model.register_comm_hook(State(model, bits=16), allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    # float16 parameters cannot be unscaled by CPU's GradScaler; the check for Inf is what counts here.
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=1000)
    for step in range(4):
        before = [p.detach().clone() for p in model.parameters()]
        optimizer.zero_grad()
        x = torch.ones(2, 8, dtype=dtype) * (rank + 1)
        if step == 1 and rank == 1:
            x[0, 0] = torch.inf
        scaler.scale(model(x).float().sum()).backward()
        bad = not all(p.grad.isfinite().all() for p in model.parameters())
        assert bad == (step == 1)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert same == (step == 1)
        assert (scaler.get_scale() < scale) == (step == 1)


@pytest.mark.parametrize("hooked", [False, True])
def test_an_inf_on_one_rank_is_seen_by_all(hooked: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        run(2, _scaled, dtype, hooked)


def _half(dtype: torch.dtype) -> None:
    n = dist.get_world_size()
    x = torch.full((3000,), 1.5, dtype=dtype)
    dist.all_reduce(x)
    assert (x == 1.5 * n).all()
    x[7] = torch.inf if dist.get_rank() == 0 else 1
    dist.all_reduce(x)
    assert not x[7].isfinite()


def test_half_precision() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        run(2, _half, dtype)


def _profiled() -> list[str]:
    model = wrapped("classifier")
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        loss_of("classifier", model(x), y).backward()
        dist.all_reduce(torch.ones(3))
        dist.barrier()
    return [event.key for event in profile.key_averages() if event.key.startswith("switchagg::")]


def test_ranges_of_the_profiler() -> None:
    for names in run(2, _profiled):
        assert {"switchagg::allreduce", "switchagg::allreduce.wait", "switchagg::barrier"} <= set(names)


def _automatic(name: str) -> None:
    model = wrapped(name)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(8, 1, 8, 8), torch.randint(0, 10, (8,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(name, model(x), y)
    loss.backward()
    optimizer.step()


def test_autocast() -> None:
    run(2, _automatic, "classifier")
