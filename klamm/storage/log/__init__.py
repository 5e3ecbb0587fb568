"""One log. In `log`, its offsets, segments and producers' states change together. The other modules decide what
changes.
"""
