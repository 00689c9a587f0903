"""`python -m diti`, which torchrun needs."""

import sys

try:
    from diti.cli import main
except KeyboardInterrupt:
    print("diti: stopped", file=sys.stderr)
    sys.exit(130)
sys.exit(main())
