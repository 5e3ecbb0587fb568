"""Requests to klamm beside the same requests to Apache Kafka 2.8.2: a seed draws them, the answers are compared.

`step.py` has a request as the seed draws it, `stories.py` the grammar, `answers.py` what of an answer is compared and
what is not, `known.py` the differences that stand, `play.py` sends the requests of a seed to both programs, and
`__main__.py` is the command.
"""
