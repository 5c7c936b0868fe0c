"""`python -m streamguard.hook`."""

from __future__ import annotations

import sys

from streamguard.hook import main

sys.exit(main())
