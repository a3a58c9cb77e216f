"""``python -m tasks.cli``: the command line where its script is not on the PATH."""

import sys

from tasks.cli import main

sys.exit(main())
