"""Cutting and loading checkpoints: the sharding table, the integer plan, the loader."""
