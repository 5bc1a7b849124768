"""`python -m hubless.demo`."""

import sys

from hubless.demo import main

if __name__ == "__main__":
    sys.exit(main())
