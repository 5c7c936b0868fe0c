"""The live page: what the guard sees now, in a browser (the extra `ui`). It reads, and writes nothing."""
