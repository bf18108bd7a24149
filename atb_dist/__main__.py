"""`python -m atb_dist` is the `atb-dist` command."""

from __future__ import annotations

import sys

from atb_dist.cli import main

sys.exit(main())
