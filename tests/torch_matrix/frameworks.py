"""Cases of what is built on torch.distributed: torchrun, Lightning, Accelerate, Transformers, torchft."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import worker_lib.torch
from tests.torch_matrix.cases import STEPS, alone, batch, case, equal, mlp, mse, near, sgd, train, whole

_LIMIT = 120.0


class Batches(Dataset[Any]):
    """This rank's batches, one an item."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return batch(step, self._rank)


@case("torchrun --max-restarts, after a killed rank", ranks=1, group=False, limit=_LIMIT)
def elastic(backend: str) -> Any:
    folder = Path(os.environ["MATRIX_FOLDER"])
    elastic_variables = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(elastic_variables)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--max-restarts=1", "--monitor-interval=0.2", "-m", "tests.torch_matrix.elastic_rank"]
    with open(folder / "said", "w+") as said:
        torchrun = subprocess.Popen(
            [*command, backend, str(folder)], env=environment, stdout=said, stderr=said
        )
        try:
            status = torchrun.wait(_LIMIT - 15)
        except subprocess.TimeoutExpired:
            torchrun.terminate()  # its ranks have sessions of their own: it ends them
            status = torchrun.wait(10)
        said.seek(0)
        text = said.read()
    print(text, file=sys.stderr)
    if status:
        errors = re.findall(r"^(?:\[rank\d+\]: *)?(?!torch)(\w[\w.]*Error: .*)", text, re.MULTILINE)
        raise RuntimeError(f"torchrun ended with {status}: {errors[-1] if errors else 'see its output'}")
    parts = [torch.load(folder / f"rank{r}.pt") for r in range(2)]
    equal([p["life"] for p in parts], [1, 1])
    assert all(torch.equal(a, b) for a, b in zip(parts[0]["model"], parts[1]["model"], strict=True))
    near(parts[0]["model"], whole(_uninterrupted()))
    return parts[0]["model"]


def _uninterrupted() -> nn.Module:
    net = mlp()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), ranks=range(2), steps=2 * STEPS)
    return net


@case("PyTorch Lightning", needs=("lightning",), group=False, limit=_LIMIT)
def lightning(backend: str) -> Any:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, pair: Any, _: int) -> torch.Tensor:
            loss = functional.mse_loss(self.net(pair[0]), pair[1])
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def configure_optimizers(self) -> Any:
            return sgd(self)

    trainer = lightning.Trainer(
        accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend=backend),
        max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False,
    )  # fmt: skip
    module = Module()
    trainer.fit(module, DataLoader(Batches(int(os.environ["RANK"])), batch_size=None))
    equal(dist.get_backend(), backend)
    near(module.net, alone())
    return [*whole(module.net), trainer.callback_metrics["loss"]]


@case("Hugging Face Accelerate", needs=("accelerate",), limit=_LIMIT)
def accelerate() -> Any:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    equal(accelerator.num_processes, dist.get_world_size())
    net = mlp()
    net, optimizer = accelerator.prepare(net, sgd(net))
    for step in range(STEPS):
        optimizer.zero_grad()
        accelerator.backward(mse(net, step, dist.get_rank()))
        optimizer.step()
    near(net, alone())
    ranks = accelerator.gather_for_metrics(torch.tensor([dist.get_rank()]))
    equal(ranks.tolist(), [*range(dist.get_world_size())])
    return [*whole(net), ranks]


@case(
    "Hugging Face Trainer, after init_process_group",
    needs=("transformers", "accelerate"),
    near=1e-3,  # AdamW divides by the size of the gradient
    limit=_LIMIT,
)
def trainer() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2, resid_pdrop=0,
                   embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    )  # fmt: skip
    texts = (torch.arange(32)[:, None] + torch.arange(16)) % 64
    arguments = TrainingArguments(
        output_dir=os.environ["MATRIX_FOLDER"], use_cpu=True, max_steps=2 * STEPS,
        per_device_train_batch_size=4, report_to=[], save_strategy="no", disable_tqdm=True,
        learning_rate=1e-2, logging_steps=1, dataloader_num_workers=0,
    )  # fmt: skip
    run = Trainer(model, arguments, train_dataset=[{"input_ids": t, "labels": t} for t in texts])
    run.train()
    equal(run.args.world_size, 2)
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    equal(len(losses), 2 * STEPS)
    assert losses[-1] < losses[0], losses
    return whole(model)


@case("torchft: replicas, one of which leaves", needs=("torchft",), group=False, limit=_LIMIT)
def torchft(backend: str) -> Any:
    from torchft import DistributedDataParallel, Manager, Optimizer
    from torchft.coordination import LighthouseServer
    from torchft.process_group import ProcessGroupGloo, ProcessGroupWrapper

    class OverSwitch(ProcessGroupWrapper):
        def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
            options = worker_lib.torch.Options()
            return worker_lib.torch.SwitchGroup(store, rank, world_size, self._timeout, "torchft", options)

        def getBackendName(self) -> str:
            return "torchft-switchagg"

    rank = int(os.environ["RANK"])
    everybody = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    lighthouse = LighthouseServer("127.0.0.1:0", 1, join_timeout_ms=5000) if rank == 0 else None
    if lighthouse is not None:
        port = lighthouse.address().rsplit(":", 1)[1]
        everybody.set("lighthouse", f"http://127.0.0.1:{port}")
    mine = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seconds = timedelta(seconds=20)
    manager = Manager(
        pg=OverSwitch(seconds) if backend == "switchagg" else ProcessGroupGloo(seconds),
        min_replica_size=1, load_state_dict=net.load_state_dict, state_dict=net.state_dict,
        replica_id=str(rank), store_addr="127.0.0.1", store_port=mine.port, rank=0, world_size=1,
        lighthouse_addr=everybody.get("lighthouse").decode(), timeout=seconds, hostname="127.0.0.1",
        init_sync=False,  # both begin with the same parameters
    )  # fmt: skip
    everybody.set(f"ready{rank}", "")
    everybody.wait([f"ready{r}" for r in range(2)])
    replica, wrapped = DistributedDataParallel(manager, net), Optimizer(manager, optimizer)

    def step(number: int) -> None:
        wrapped.zero_grad()
        mse(replica, number, rank).backward()
        wrapped.step()

    for number in range(STEPS):
        step(number)
        equal(manager.num_participants(), 2)
    expected = mlp()
    theirs = torch.optim.SGD(expected.parameters(), lr=0.1)
    train(expected, theirs, ranks=range(2))
    near(net, expected)
    found = whole(net)
    if rank == 1:
        manager.shutdown(wait=False)
        everybody.set("left", "")
        everybody.wait(["done"])
    else:
        everybody.wait(["left"])
        before = manager.current_step()
        number = STEPS
        while manager.current_step() < before + 2:  # the step in which it leaves may be lost
            step(number)
            number += 1
        equal(manager.num_participants(), 1)
        everybody.set("done", "")
        manager.shutdown(wait=False)
    return found
