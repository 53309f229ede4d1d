"""Runnable examples; README.md says what each one shows."""
