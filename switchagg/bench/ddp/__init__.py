"""`switchagg bench ddp`: training under DistributedDataParallel, through the switch and through gloo."""
