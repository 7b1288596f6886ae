"""Tests of the native code by itself, with sanitizers."""
