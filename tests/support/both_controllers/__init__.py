"""The same scenario under Apache Kafka 2.8.2's controller and under klamm's.

A seed draws a sequence of what operators and clusters do (`drawing.py`). Two clusters play it at the same time, step by
step (`side.py`): in each, two brokers may be the controller (`controllers.py`), all others only note what they are told
and answer as brokers do (`recorder.py`). After each step both clusters come to rest, and what is there is compared
(`comparison.py`), but for the differences that `known.py` names with their reasons. What differs is shrunk
(`playing.py`). `python -m support.both_controllers` plays many seeds.
"""
