"""One hosted partition: its leader, high watermark and ISR, the changes that its leader proposes, and the operations
that wait for them.
"""
