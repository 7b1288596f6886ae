"""Sums of what is sparse: index-value pairs, or rows of a table with their numbers.

support     which rows there are at any rank: an OR of bitmaps
costs       what a sum costs with those rows alone, and with the whole table; the break-even of both
collective  both together: `Session.allreduce_sparse`
"""

from worker_lib.sparse.collective import SparseRows, sparse_costs
from worker_lib.sparse.costs import SparseCosts

__all__ = ["SparseCosts", "SparseRows", "sparse_costs"]
