"""One log. In `log` its offsets, segments and producers' states change together; what is decided before a change is in
the modules that are named for it.
"""
