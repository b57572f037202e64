"""The four roles played by a language model: what it is asked, and what its replies are worth."""
