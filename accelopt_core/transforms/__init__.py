"""Source transformations, one file each: what the catalogue and the menu choose from. No language model."""
