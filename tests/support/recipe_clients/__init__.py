"""The clients that tests/recipes tries, behind one face (contract.py): one module for each of them."""
