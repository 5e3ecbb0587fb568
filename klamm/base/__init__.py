"""Modules that every part of klamm may use, and that use no other part: the seams to the machine (`environment`), long
work in slices (`slices`), metrics, waiting requests (`purgatory`), compiled loops, and text made safe to show.
"""
