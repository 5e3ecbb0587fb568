"""What every part of klamm may use, and what uses nothing of klamm: the seams to the machine (`environment`), long work
in slices (`slices`), metrics, requests that wait (`purgatory`), compiled loops, and text made safe to show.
"""
