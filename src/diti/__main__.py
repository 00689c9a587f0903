"""`python -m diti`, which torchrun needs."""

import sys

from diti.cli import main

sys.exit(main())
