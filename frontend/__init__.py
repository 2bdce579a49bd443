"""The doors: the DSL in which programs are written, and what runs them."""
