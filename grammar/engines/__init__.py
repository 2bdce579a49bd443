"""Constraint engines behind the seam of `drawloom.grammar.engine`."""
