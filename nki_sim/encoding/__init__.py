"""A program as bytes: stored, sent row by row, and the form by which two are told apart."""
