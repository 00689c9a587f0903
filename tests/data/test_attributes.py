import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from diti.core.errors import InputError
from diti.data.attributes import attribute_column, attribute_names, dataset_table, is_binary, join_attributes


@pytest.mark.parametrize("values", [[0, 1, 1], [-1, 1, 1], [False, True, True], [0.0, 1.0, 1.0], ["0", "1", "1"]])
def test_two_values_become_zero_and_one(values):
    column = attribute_column("hat", values)
    assert column.type == pa.int8() and column.to_pylist() == [0, 1, 1]


def test_numbers_stay_numbers():
    column = attribute_column("age", ["3.5", "-2", "7"])
    assert column.type == pa.float32() and column.to_pylist() == [3.5, -2.0, 7.0]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["0", "yes", "1"], "'hat' has the value 'yes'.*--ignore hat"),
        ([0, None, 1], "'hat' is empty in row 2"),
        ([0.0, float("nan")], "'hat' is not a finite number in row 2"),
        ([[1], [2]], "'hat' has the value"),
    ],
)
def test_other_values_are_refused_with_a_remedy(values, words):
    with pytest.raises(InputError, match=words):
        attribute_column("hat", values)


def test_dataset_table_orders_and_checks_its_columns():
    table = dataset_table(["a", "b"], split=["val", 2], identity=[7, 8], attributes={"hat": np.array([0, 1])})
    assert table.column_names == ["file", "split", "identity", "hat"]
    assert table["split"].to_pylist() == ["valid", "test"]
    assert attribute_names(table) == ["hat"] and is_binary(table["hat"])
    with pytest.raises(InputError, match="split 'x' is unknown"):
        dataset_table(["a"], split=["x"])
    with pytest.raises(InputError, match="may not be called 'split'"):
        dataset_table(["a"], attributes={"split": [1.0]})


FILES = ["a/01.png", "b/02.png", "c d/ä.png"]


@pytest.mark.parametrize(
    "names", [["b/02.png", "c d/ä.png", "a/01.png"], ["02.png", "ä.png", "01.png"], ["02", "ä", "01"]]
)
@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_join_by_path_name_or_stem(tmp_path, names, suffix):
    path = tmp_path / f"labels{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pa.table({"file_name": names, "hat": [2, 3, 1]}), path)
    else:
        tab = "," if suffix == ".csv" else "\t"
        rows = [f"file_name{tab}hat", *(f"{n}{tab}{v}" for n, v in zip(names, [2, 3, 1], strict=True))]
        path.write_text("\n".join(rows), encoding="utf-8")
    kept, table, notes = join_attributes(FILES, path)
    assert kept == [0, 1, 2] and table["hat"].to_pylist() == [1, 2, 3] and notes == ()


def test_a_table_that_does_not_match_says_how_many_and_shows_two(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("file,hat\na/01.png,1\nx.png,0\n")
    with pytest.raises(InputError, match=r"has a row for 1 of 3 images; without one: b/02\.png, c d/ä\.png"):
        join_attributes(FILES, path)
    kept, _, notes = join_attributes(FILES, path, only_labelled=True)
    assert kept == [0] and notes == ("1 rows of labels.csv name no image and were left out",)
    path.write_text("file,hat\ny.png,1\nx.png,0\n")
    with pytest.raises(InputError, match=r"matches none of the 3 images: it names 'y\.png', 'x\.png'"):
        join_attributes(FILES, path, only_labelled=True)


def test_a_name_that_stands_for_two_images_is_refused(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("file,hat\n01.png,1\n")
    with pytest.raises(InputError, match="one row matches both"):
        join_attributes(["a/01.png", "b/01.png"], path)


def test_ignore_must_name_a_column(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text("file,hat,note\na/01.png,1,fine\nb/02.png,0,good\nc d/ä.png,1,x\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"--ignore nott: .* Did you mean 'note'"):
        join_attributes(FILES, path, ignore=["nott"])
    assert join_attributes(FILES, path, ignore=["note"])[1].column_names == ["file", "hat"]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("ending", ["", "SEPARATOR"])
def test_the_separator_is_found(tmp_path, separator, ending):
    path = tmp_path / "labels.csv"
    rows = ["file;hat;a, b", "a/01.png;1;3.5", "b/02.png;0;2", "c d/ä.png;1;7"]
    path.write_text("\n".join(row + ending for row in rows).replace("SEPARATOR", ";"), encoding="utf-8-sig")
    if separator != ";":
        path.write_text(
            path.read_text(encoding="utf-8").replace("a, b", "b").replace(";", separator), encoding="utf-8"
        )
    _, table, notes = join_attributes(FILES, path)
    assert table["hat"].to_pylist() == [1, 0, 1] and table.num_columns == 3 and notes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("file hat\na/01.png 1\nb/02.png 0\nc d/ä.png 1", r"one column, 'file hat'; separate columns by"),
        ("file,hat,hat\na/01.png,1,0", r"has the column 'hat' twice; give each"),
        ("file,hat, hat\na/01.png,1,0", r"has the column 'hat' twice; give each"),
        ("file,,hat\na/01.png,1,0", r"has no name for column 2"),
        ("file,hat\n", r"has no rows; it needs one for each image"),
        ("", "cannot be read as a table: Empty"),
        ("file,größe\na/01.png,1".encode("latin-1"), r"not UTF-8 text \(byte 8\); save it as CSV in UTF-8"),
        ("file,hat\n\xe4.png,1".encode("latin-1"), r"not UTF-8 text \(byte 10\); save it as CSV in UTF-8"),
        ("file,hat\na/01.png,1".encode("utf-16"), r"not UTF-8 text"),
        (
            "file,hat\na/01.png,1\nb/02.png,1\nb/02.png,0\nc d/ä.png,1\nb/02.png,1",
            r"has 3 rows for b/02\.png that differ \(rows 2, 3, 5\); keep one",
        ),
    ],
)
def test_tables_that_would_lose_labels_are_refused(tmp_path, text, words):
    path = tmp_path / "labels.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=words):
        join_attributes(FILES, path, only_labelled=True)


def test_rows_left_out_are_counted_by_their_reason(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(
        "file,hat\na/01.png,1\nb/02.png,0\na/01.png,1\nc d/ä.png,1\na/01.png,1\nx.png,0\n", encoding="utf-8"
    )
    _, table, notes = join_attributes(FILES, path)
    assert table["hat"].to_pylist() == [1, 0, 1]
    assert notes == (
        "2 rows of labels.csv repeat another one and were left out",
        "1 rows of labels.csv name no image and were left out",
    )
    path.write_text("file\na/01.png\nb/02.png\nc d/ä.png\n", encoding="utf-8")
    assert join_attributes(FILES, path)[2] == ("labels.csv has no attributes",)


def test_images_in_the_table_do_not_fill_the_message(tmp_path):
    """Parquet files of the public hub have a column called image, of encoded images."""
    images = [{"bytes": bytes(range(256)) * 20, "path": None}] * 3
    pyarrow.parquet.write_table(pa.table({"image": images, "hat": [0, 1, 1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"no column that names the images; call it.*\(found: image, hat\)$"):
        join_attributes(FILES, tmp_path / "x.parquet")
    pyarrow.parquet.write_table(pa.table({"file": ["x" * 5000], "hat": [0]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="matches none of the 3 images") as told:
        join_attributes(FILES, tmp_path / "x.parquet")
    assert len(str(told.value)) < 400
