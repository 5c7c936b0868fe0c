"""`python -m streamguard`."""

from __future__ import annotations

from streamguard.cli import main

main()
