"""Measurements that users can repeat. Each prints ours beside a peer or a limit of the same run."""
