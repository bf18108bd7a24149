"""Turning a checkpoint's layout into another one, with proof: `atb-dist convert` and `verify`.

A conversion reads windows of whole rows of each tensor, every source byte once, and writes each to
all files that hold some of it. `layouts` says who holds what, `copying` moves bytes, `proof` reads
them again, `job` keeps the order, `encoding` is where types change.
"""
