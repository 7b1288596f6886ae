"""Fuzzers of the native parsers, built with the address and undefined-behaviour sanitizers.

python -m tests.native.fuzz --executions 1000000 [--target slots] [--seed 1]
"""
