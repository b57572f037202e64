"""The commands of `python -m nki_sim`: what each does, reads and prints."""
