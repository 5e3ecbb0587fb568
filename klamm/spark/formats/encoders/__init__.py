"""Columns of structs become bytes: a module for each format, with `encoder(column, data_type)`.

What must stay true: a value that the format cannot express is an error that names the row and the field, never another
value. Record values are null exactly where the rows are.
"""
