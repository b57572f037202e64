"""Where candidates are evaluated, each with the one verb `evaluate`: here, over SSH, on several hosts."""
