"""Looking back at what was judged: reading the verdicts, explaining them, deriving them anew, trying other policies."""
