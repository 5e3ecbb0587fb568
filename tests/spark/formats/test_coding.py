"""What formats cost where they are not used, and what a missing library is told."""

import subprocess
import sys
from unittest.mock import patch

import pyarrow as pa
import pytest

from klamm.spark.formats.coding import make_decoder
from klamm.spark.formats.settings import AVRO, PROTOBUF, ColumnFormat, MissingLibrary


def test_planning_imports_no_library_of_a_format() -> None:
    program = (
        "import sys\n"
        "from klamm.spark.source import KlammDataSource\n"
        "options = {'value.format': 'avro', 'value.schema': '{\"type\": \"array\", \"items\": \"int\"}'}\n"
        "print(KlammDataSource(options).schema())\n"
        "print([m for m in ('numba', 'pyarrow', 'numpy', 'fastavro', 'google.protobuf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    schema, imported = done.stdout.splitlines()
    assert schema.startswith("key binary, value ARRAY<INT>, topic string")
    assert imported == "[]"


@pytest.mark.parametrize(
    ("name", "module", "package"), [(AVRO, "fastavro", "fastavro"), (PROTOBUF, "google.protobuf", "protobuf")]
)
def test_a_missing_library_is_one_sentence(name: str, module: str, package: str) -> None:
    without = {one: None for one in sys.modules if one == module or one.startswith(f"{module}.")}
    decoder = f"klamm.spark.formats.{name}"
    with patch.dict(sys.modules, {**without, module: None}), pytest.raises(MissingLibrary) as caught:
        sys.modules.pop(decoder, None)
        make_decoder(ColumnFormat("value", name, "{}", "m"), pa.struct([("a", pa.int32())]))
    assert str(caught.value) == (
        f"the format {name} needs the package {package}: pip install 'klamm[formats]', also on the workers"
    )
