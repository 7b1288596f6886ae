"""Slurm's `sbatch`, `srun` and `scontrol show hostnames`, as far as the processes that they start can see.

Variables are those of Slurm 25 (src/common/env.c): a batch script is a step too, number 2^32 - 5, which is
written with a sign there. Hosts are namespaces (FAKE_SLURM_HOSTS has ids of processes in them), or this one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HOSTS = "FAKE_SLURM_HOSTS"


def install(folder: Path, holders: tuple[int, ...] = ()) -> dict[str, str]:
    """Writes the commands to a folder; returns the variables with which they are found.

    Args:
        holders: a process in the namespaces of each host, node1, node2 ...; none: this host.
    """
    for command in ("sbatch", "srun", "scontrol"):
        (folder / command).write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {command} "$@"\n')
        (folder / command).chmod(0o755)
    hosts = ",".join(f"node{number}={pid}" for number, pid in enumerate(holders, 1)) or "localhost=0"
    return {HOSTS: hosts, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def _holders() -> dict[str, str]:
    return dict(each.split("=") for each in os.environ[HOSTS].split(","))


def _start(host: str, command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    pid = _holders()[host]
    there = ["sh", "-c", 'cd "$0" && exec "$@"', os.getcwd()]  # a mount namespace begins at its root
    enter = ["nsenter", "-t", pid, "-n", "-u", "-m", *there] if pid != "0" else []
    return subprocess.Popen([*enter, *command], env=os.environ | variables)


def _options(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Splits ``-n 4 --nodes=2 program ...`` in options, by their long names, and the rest."""
    short = {"-n": "--ntasks", "-N": "--nodes", "-w": "--nodelist", "--input": "--input"}
    found = {}
    words = list(words)
    while words and words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        found[short.get(name, name)] = words.pop(0) if name in short else value
    return found, words


def _expand(nodes: str) -> list[str]:
    """``a,node[1-2]``: a, node1, node2."""
    found = []
    for name, first, last in re.findall(r"([^,\[]+)(?:\[(\d+)-(\d+)\])?,?", nodes):
        found += [f"{name}{number}" for number in range(int(first), int(last) + 1)] if first else [name]
    return found


def _compress(names: list[str]) -> str:
    """The contrary of `_expand`, for names with consecutive numbers."""
    return names[0] if len(names) == 1 else f"node[{names[0][4:]}-{names[-1][4:]}]"


def _spread(options: dict[str, str], names: list[str]) -> list[int]:
    """Number of tasks on each host."""
    each = int(options.get("--ntasks-per-node", 0))
    total = int(options.get("--ntasks", each * len(names) or len(names)))
    return [len(range(index, total, len(names))) for index in range(len(names))]


def _listed(counts: list[int]) -> str:
    return f"{counts[0]}(x{len(counts)})" if len(counts) > 1 and len(set(counts)) == 1 else str(counts)[1:-1]


def _allocation(options: dict[str, str]) -> dict[str, str]:
    """Variables that a batch script finds, and all of its steps."""
    names = list(_holders())[: int(options.get("--nodes", 1))]
    counts = _spread(options, names)
    nodes, number = _compress(names), str(os.getpid())
    variables = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(len(names)),
        "SLURM_NNODES": str(len(names)),
        "SLURM_TASKS_PER_NODE": _listed(counts),
        "SLURM_NTASKS": str(sum(counts)),
        "SLURM_NPROCS": str(sum(counts)),
    }
    if each := options.get("--ntasks-per-node"):
        variables["SLURM_NTASKS_PER_NODE"] = each
    return variables | _task(0, 0, 0)


def _task(rank: int, local: int, node: int) -> dict[str, str]:
    return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node)}


def sbatch(words: list[str]) -> int:
    """Runs a script at once, on the first host."""
    (script,) = words
    lines = re.findall(r"^#SBATCH (.*)", Path(script).read_text(), re.MULTILINE)
    options, _ = _options([word for line in lines for word in line.split("#")[0].split()])
    variables = _allocation(options) | {"SLURM_STEP_ID": "-5", "SLURM_STEPID": "-5"}
    first = _expand(variables["SLURM_JOB_NODELIST"])[0]
    return _start(first, ["bash", script], variables | {"SLURMD_NODENAME": first}).wait()


def srun(words: list[str]) -> int:
    """Runs a command as a step of the allocation, or of one of its own."""
    options, command = _options(words)
    if "--version" in options:  # Open MPI 5 asks
        print("slurm 25.05.0")
        return 0
    allocation = {} if "SLURM_JOB_ID" in os.environ else _allocation(options)
    around = os.environ | allocation
    options = {"--ntasks": around["SLURM_NTASKS"]} | options
    names = _expand(options.get("--nodelist") or around["SLURM_JOB_NODELIST"])
    counts = _spread(options, names[: int(options.get("--nodes", len(names)))])
    names = names[: len(counts)]
    nodes, tasks = _compress(names), str(sum(counts))
    step = {
        **dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), str(os.getpid())),
        **dict.fromkeys(("SLURM_STEP_NODELIST", "SLURM_NODELIST"), nodes),
        **dict.fromkeys(("SLURM_STEP_NUM_NODES", "SLURM_NNODES"), str(len(names))),
        **dict.fromkeys(("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"), tasks),
        **dict.fromkeys(("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), _listed(counts)),
    }
    ranks: list[subprocess.Popen[bytes]] = []
    for node, (name, count) in enumerate(zip(names, counts, strict=True)):
        for local in range(count):
            task = _task(len(ranks), local, node) | {"SLURMD_NODENAME": name}
            if "--mpi" in options and options["--mpi"] == "pmi2":
                task |= {"PMI_RANK": str(len(ranks)), "PMI_SIZE": tasks}
            ranks.append(_start(name, command, allocation | step | task))
    return max(rank.wait() for rank in ranks)


def scontrol(words: list[str]) -> int:
    """The names of a list of hosts, a line each."""
    print("\n".join(_expand(words[2])))
    return 0


if __name__ == "__main__":
    sys.exit({"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](sys.argv[2:]))
